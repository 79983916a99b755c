// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/podbounds"
)

// View is what a pod's status is made of.
type View struct {
	Pod   *corev1.Pod
	Stage Stage
	// End is set when the node ended the pod.
	End *End
	// Started is when the node took the pod on; zero before.
	Started time.Time
	// Sandbox is the newest; nil before the first.
	Sandbox    *Sandbox
	Containers []ContainerView
	Resizing   Resizing
	// Granted is the pod with the resources that the node grants it; Bounds are those of its cgroup.
	Granted *corev1.Pod
	Bounds  podbounds.Bounds
	// RestartingAll while all containers are ended and removed, for the pod to start again in place.
	RestartingAll bool
}

// ContainerView is one container of the spec and what became of it.
type ContainerView struct {
	Spec *corev1.Container
	Kind Kind
	// Current and Last are the newest container of that name and the one before; nil if there are none.
	Current, Last *Container
	// Waiting says what holds the container up, if anything does.
	Waiting Waiting
	// Restarting tells that the container that exited is to run again.
	Restarting bool
	// Starting tells that Current runs but its start is not complete.
	Starting       bool
	Started, Ready bool
	// Granted are the resources that the node grants the container, Applied those that Current runs with.
	Granted, Applied *corev1.ResourceRequirements
}

// Kept tells whether the runtime has the container, or one of its name before it.
func (c ContainerView) Kept() bool {
	return c.Current != nil && !c.Current.lost() || c.Last != nil && !c.Last.lost()
}

// View of the pod as it is now. It shares memory with the Machine until its next Step.
func (m *Machine) View() View {
	v := View{Pod: m.pod, Stage: m.stage, End: m.end, Started: m.started, Resizing: m.resizing}
	v.Granted, v.Bounds = m.Granted(), m.level.bounded
	v.RestartingAll = m.stage == Syncing && m.restartingAll()
	if len(m.sandboxes) > 0 {
		v.Sandbox = &m.sandboxes[0]
	}
	for _, s := range m.slots {
		v.Containers = append(v.Containers, m.viewOf(s))
	}
	return v
}

func (m *Machine) viewOf(s *slot) ContainerView {
	c := ContainerView{
		Spec: s.spec, Kind: s.kind, Waiting: s.waiting, Current: s.cur(), Started: s.started(), Ready: s.ready(),
		Granted: s.granted(),
	}
	if len(s.list) > 1 {
		c.Last = &s.list[1]
	}
	if c.Current == nil {
		return c
	}
	c.Applied, _ = s.applied(c.Current)
	c.Starting = c.Current.State == Running && s.starting(c.Current)
	if c.Current.State == Exited && m.stage < Terminating {
		c.Restarting = s.force || m.restarts(s, c.Current)
	}
	return c
}

// Target is a container whose probes are to run.
type Target struct {
	Spec    *corev1.Container
	Kind    Kind
	ID      string
	Started time.Time
	// StartupDone tells that its startup probe, if any, has succeeded.
	StartupDone bool
}

// Targets are the containers that are up and not being killed.
func (m *Machine) Targets() []Target {
	if m.stage != Syncing && m.stage != Terminating {
		return nil
	}
	var out []Target
	for _, s := range m.slots {
		c := s.cur()
		probed := s.spec.LivenessProbe != nil || s.spec.ReadinessProbe != nil || s.spec.StartupProbe != nil
		if !probed || c == nil || c.State != Running || s.starting(c) {
			continue
		}
		spec := s.spec
		if m.stage == Terminating {
			// Whether it lives is decided; whether it can serve on is not.
			quiet := *spec
			quiet.LivenessProbe, quiet.StartupProbe = nil, nil
			spec = &quiet
		}
		out = append(out, Target{Spec: spec, Kind: s.kind, ID: c.ID, Started: c.Started, StartupDone: s.started()})
	}
	return out
}

// Snapshot of what is known to be in the runtime.
func (m *Machine) Snapshot() Snapshot {
	snap := Snapshot{Sandboxes: append([]Sandbox(nil), m.sandboxes...)}
	for _, s := range m.slots {
		for i := range s.list {
			if !s.list[i].lost() {
				snap.Containers = append(snap.Containers, s.list[i])
			}
		}
	}
	return snap
}
