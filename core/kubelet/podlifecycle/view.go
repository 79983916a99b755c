// SPDX-License-Identifier: Apache-2.0

package podlifecycle

import "github.com/wasmplane/wasmplane/core/kubelet/pod"

// View of the pod as it is now. It shares memory with the Machine until its next Step.
func (m *Machine) View() pod.View {
	v := pod.View{Pod: m.pod, Stage: m.stage, End: m.end, Started: m.started, Resizing: m.resizing}
	v.Granted, v.Bounds = m.Granted(), m.level.bounded
	v.RestartingAll = m.stage == pod.Syncing && m.restartingAll()
	if len(m.sandboxes) > 0 {
		v.Sandbox = &m.sandboxes[0].Sandbox
	}
	for _, s := range m.slots {
		v.Containers = append(v.Containers, m.viewOf(s))
	}
	return v
}

func (m *Machine) viewOf(s *slot) pod.ContainerView {
	c := pod.ContainerView{
		Spec: s.spec, Kind: s.kind, Waiting: s.waiting, Started: s.started(), Ready: s.ready(),
		Granted: s.granted(),
	}
	if len(s.list) > 1 {
		c.Last = &s.list[1].Container
	}
	cur := s.cur()
	if cur == nil {
		return c
	}
	c.Current = &cur.Container
	c.Applied, _ = s.applied(cur)
	c.Starting = cur.State == pod.Running && s.starting(cur)
	if cur.State == pod.Exited && m.stage < pod.Terminating {
		c.Restarting = s.force || m.restarts(s, cur)
	}
	return c
}

// Targets are the containers that are up and not being killed.
func (m *Machine) Targets() []pod.Target {
	if m.stage != pod.Syncing && m.stage != pod.Terminating {
		return nil
	}
	var out []pod.Target
	for _, s := range m.slots {
		c := s.cur()
		probed := s.spec.LivenessProbe != nil || s.spec.ReadinessProbe != nil || s.spec.StartupProbe != nil
		if !probed || c == nil || c.State != pod.Running || s.starting(c) {
			continue
		}
		spec := s.spec
		if m.stage == pod.Terminating {
			// Whether it lives is decided; whether it can serve on is not.
			quiet := *spec
			quiet.LivenessProbe, quiet.StartupProbe = nil, nil
			spec = &quiet
		}
		out = append(out, pod.Target{Spec: spec, Kind: s.kind, ID: c.ID, Started: c.Started, StartupDone: s.started()})
	}
	return out
}

// Snapshot of what is known to be in the runtime.
func (m *Machine) Snapshot() pod.Snapshot {
	var snap pod.Snapshot
	for i := range m.sandboxes {
		snap.Sandboxes = append(snap.Sandboxes, m.sandboxes[i].Sandbox)
	}
	for _, s := range m.slots {
		for i := range s.list {
			if !s.list[i].Lost() {
				snap.Containers = append(snap.Containers, s.list[i].Container)
			}
		}
	}
	return snap
}
