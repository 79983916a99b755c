// SPDX-License-Identifier: Apache-2.0

package podlifecycle

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podbounds"
)

// level is what the pod asks for as a whole, and what of it is granted.
type level struct {
	known   bool
	granted *corev1.ResourceRequirements
	// bounded is what the pod's cgroup was given last; mounting what it is being given with its volumes.
	bounded, mounting podbounds.Bounds
	// growing while the pod's cgroup is to get more before its containers do.
	growing bool
	// changed while a change of it has not been told to be complete.
	changed bool
}

// adoptLevel takes what was granted before from the pod's status: another change of it may wait for the node.
func (m *Machine) adoptLevel(p *corev1.Pod) {
	m.level.known, m.level.granted = true, p.Spec.Resources.DeepCopy()
	if p.Spec.Resources == nil || p.Status.Resources == nil || p.Status.Phase != corev1.PodRunning || len(p.Spec.Overhead) > 0 {
		return
	}
	for _, name := range podbounds.Resizable {
		restore(m.level.granted.Requests, p.Status.AllocatedResources, name)
		restore(m.level.granted.Limits, p.Status.Resources.Limits, name)
	}
}

func restore(to, from corev1.ResourceList, name corev1.ResourceName) {
	if _, ok := to[name]; !ok {
		return
	}
	if q, ok := from[name]; ok {
		to[name] = q
		return
	}
	delete(to, name)
}

// Granted is the pod with the resources that the node has granted it: not those that it asks for by now, where
// a change waits.
func (m *Machine) Granted() *corev1.Pod {
	same := !m.level.known || podbounds.Same(m.level.granted, m.pod.Spec.Resources)
	for _, s := range m.slots {
		same = same && (s.grant == nil || podbounds.Same(s.grant, &s.spec.Resources))
	}
	if same {
		return m.pod
	}
	p := m.pod.DeepCopy()
	p.Spec.Resources = m.level.granted.DeepCopy()
	for _, s := range m.slots {
		if c, kind := pod.Find(p, s.spec.Name); s.grant != nil && c != nil && kind != pod.Ephemeral {
			c.Resources.Requests, c.Resources.Limits = s.grant.Requests, s.grant.Limits
		}
	}
	return p
}

// bound brings what is granted to the pod's cgroup: more before its containers get it, less after they gave it up.
// The kernel refuses it the other way round.
func (m *Machine) bound() {
	target := podbounds.Of(m.Granted())
	next := m.level.bounded.With(target)
	m.level.growing = next != m.level.bounded
	if !m.level.growing {
		if target == m.level.bounded {
			return
		}
		next = target
	}
	m.resizing.Active = true
	if m.flying(bounds) || !m.level.growing && m.unapplied() {
		return
	}
	m.do(pod.Bound{From: m.level.bounded, To: next})
}

func bounds(a pod.Action) bool {
	_, ok := a.(pod.Bound)
	return ok
}

// unapplied tells whether a container that runs still has what is no longer granted.
func (m *Machine) unapplied() bool {
	for _, s := range m.slots {
		if !s.resizable() {
			continue
		}
		if c := s.cur(); c != nil && (c.State == pod.Running || c.State == pod.Unknown) && (s.kill != nil || m.outdated(s, c)) {
			return true
		}
	}
	return false
}

// outdated tells whether a container runs with other resources than it is granted.
func (m *Machine) outdated(s *slot, c *container) bool {
	have, level := s.applied(c)
	return have != nil && !podbounds.Same(podbounds.Inherit(have, level), podbounds.Inherit(s.granted(), m.level.granted))
}

func (m *Machine) boundDone(a pod.Bound) {
	m.level.bounded, m.resizing.Failed = a.To, ""
}
