// SPDX-License-Identifier: Apache-2.0

package podlifecycle

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podbounds"
)

// granted are the resources that the container may use: those of the spec, or,
// while a change of them waits for the node, those before it.
func (s *slot) granted() *corev1.ResourceRequirements {
	if s.grant != nil {
		return s.grant
	}
	return &s.spec.Resources
}

// resizable tells whether the resources of a container may change: those that are added to a pod that runs have none.
func (s *slot) resizable() bool { return s.kind != pod.Ephemeral }

// applied are the resources that a container runs with, and those of its pod as a whole when it got them.
func (s *slot) applied(c *container) (own, level *corev1.ResourceRequirements) {
	if s.resized.id == c.ID && s.resized.to != nil {
		return s.resized.to, s.resized.level
	}
	return c.Resources, c.Level
}

type resized struct {
	id        string
	to, level *corev1.ResourceRequirements
}

// fillGrants takes for granted what the containers run with, or else what they ask for: that was granted at admission.
func (m *Machine) fillGrants() {
	if !m.level.known {
		m.adoptLevel(m.pod)
	}
	for _, s := range m.slots {
		if !s.resizable() || s.grant != nil {
			continue
		}
		s.grant = s.spec.Resources.DeepCopy()
		c := s.cur()
		if c == nil || c.State != pod.Running {
			continue
		}
		if r := m.told(c); r != nil {
			s.grant, s.resized = r, resized{id: c.ID, to: r, level: m.level.granted}
		} else if c.Resources != nil {
			s.grant = c.Resources
		}
	}
}

// told are the resources that a container runs with by its pod's status: those of its last resize, where that is complete.
func (m *Machine) told(c *container) *corev1.ResourceRequirements {
	st := &m.pod.Status
	for i := range st.Conditions {
		if st.Conditions[i].Type == corev1.PodResizeInProgress {
			return nil
		}
	}
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for i := range list {
			if list[i].Resources != nil && list[i].State.Running != nil && strings.HasSuffix(list[i].ContainerID, "://"+c.ID) {
				return &corev1.ResourceRequirements{Requests: list[i].Resources.Requests, Limits: list[i].Resources.Limits}
			}
		}
	}
	return nil
}

// resize asks for what has changed to be granted, and brings it to the containers that run.
func (m *Machine) resize() {
	m.resizing.Active = false
	want := !podbounds.Same(m.level.granted, m.pod.Spec.Resources)
	for _, s := range m.slots {
		want = want || s.resizable() && !podbounds.Same(s.grant, &s.spec.Resources)
	}
	m.resizing.Unanswered = want && m.asked != m.pod.Generation
	if !want {
		m.resizing.Pending, m.resizing.Message = "", ""
	} else if m.resizing.Pending != "Infeasible" || m.asked != m.pod.Generation {
		m.do(pod.Grant{Generation: m.pod.Generation})
	}
	m.bound()
	for _, s := range m.slots {
		if s.resizable() {
			m.apply1(s)
		}
	}
	if m.resizing.Active {
		return
	}
	m.resizing.Failed = ""
	if m.level.changed {
		m.level.changed = false
		m.emit(pod.Note{Reason: "ResizeCompleted", Message: "Pod resize completed"})
	}
}

// apply1 brings what is granted to one container.
func (m *Machine) apply1(s *slot) {
	c := s.cur()
	if c != nil && c.State == pod.Running && c.ID != s.reshaped {
		s.reshaped = ""
	}
	m.resizing.Active = m.resizing.Active || s.reshaped != ""
	if c == nil || c.State != pod.Running || s.kill != nil || s.starting(c) {
		return
	}
	if !m.outdated(s, c) {
		return
	}
	m.resizing.Active = true
	if s.op != nil || m.level.growing {
		return
	}
	have, level := s.applied(c)
	for _, p := range s.spec.ResizePolicy {
		if p.RestartPolicy == corev1.RestartContainer &&
			podbounds.Differ(podbounds.Inherit(have, level), podbounds.Inherit(s.granted(), m.level.granted), p.ResourceName) {
			m.kill(s, m.spare(s), fmt.Sprintf("Container %s resize requires restart", s.spec.Name))
			if s.force = m.mayRestart(s); s.force {
				s.reshaped = c.ID
			}
			return
		}
	}
	if m.delayed(s) {
		return
	}
	s.op = pod.Resize{Container: s.spec.Name, ID: c.ID, From: have, To: s.granted(), FromLevel: level, ToLevel: m.level.granted}
	m.emit(s.op)
}

func (m *Machine) grantDone(a pod.Grant, ev pod.Done) {
	if a.Generation != m.pod.Generation {
		return // the pod asks for something else by now, and the node is asked about that
	}
	m.asked, m.resizing.Unanswered = m.pod.Generation, false
	if ev.Refused {
		m.resizing.Pending, m.resizing.Message = ev.Reason, ev.Message
		if ev.Reason != "Infeasible" {
			// Asked for again: what is in the way may go.
			a := pod.Grant{Generation: m.pod.Generation}
			m.tasks[a] = &task{at: m.now.Add(m.opts.RetryMax)}
		}
		return
	}
	m.resizing.Pending, m.resizing.Message = "", ""
	m.level.changed = m.level.changed || !podbounds.Same(m.level.granted, m.pod.Spec.Resources)
	m.level.granted = m.pod.Spec.Resources.DeepCopy()
	for _, s := range m.slots {
		if s.resizable() {
			s.grant = s.spec.Resources.DeepCopy()
		}
	}
}

func (m *Machine) resizeDone(a pod.Resize, ev pod.Done) {
	s := m.slot(a.Container)
	if s == nil {
		return
	}
	s.op = nil
	if ev.Err != nil {
		m.resizing.Failed = ev.Message
		s.retryAt = m.now.Add(max(s.retry.next(m.now, m.opts.RetryInitial, m.opts.RetryMax), time.Millisecond))
		return
	}
	m.resizing.Failed, s.retry = "", backoff{}
	s.resized = resized{id: a.ID, to: a.To, level: a.ToLevel}
}
