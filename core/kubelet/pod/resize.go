// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ResourcesAnnotation on a container has the resources that it was made with:
// the CRI reports those of the kernel, in which requests cannot be told.
const ResourcesAnnotation = "kubelet.wasmplane.dev/resources"

// Resizing says how a change of a running pod's resources stands.
type Resizing struct {
	// Pending is why it cannot begin: Deferred or Infeasible; empty if it can.
	Pending, Message string
	// Active while it is carried out; Failed is why that does not succeed.
	Active bool
	Failed string
	// Unanswered while the node has not said whether it grants what this generation
	// of the pod asks for: nobody may take it for observed.
	Unanswered bool
}

// resizable are the resources that may change while a container runs.
var resizable = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// EncodeResources is the value of ResourcesAnnotation.
func EncodeResources(r *corev1.ResourceRequirements) string {
	raw, err := json.Marshal(corev1.ResourceRequirements{Limits: r.Limits, Requests: r.Requests})
	if err != nil {
		return ""
	}
	return string(raw)
}

// DecodeResources reads ResourcesAnnotation; nil if it is not there or not readable.
func DecodeResources(s string) *corev1.ResourceRequirements {
	if s == "" {
		return nil
	}
	r := &corev1.ResourceRequirements{}
	if json.Unmarshal([]byte(s), r) != nil {
		return nil
	}
	return r
}

func sameResources(a, b *corev1.ResourceRequirements) bool {
	for _, name := range resizable {
		if differs(a, b, name) {
			return false
		}
	}
	return true
}

func differs(a, b *corev1.ResourceRequirements, name corev1.ResourceName) bool {
	x, y := a.Requests[name], b.Requests[name]
	v, w := a.Limits[name], b.Limits[name]
	return x.Cmp(y) != 0 || v.Cmp(w) != 0
}

// granted are the resources that the container may use: those of the spec, or,
// while a change of them waits for the node, those before it.
func (s *slot) granted() *corev1.ResourceRequirements {
	if s.grant != nil {
		return s.grant
	}
	return &s.spec.Resources
}

// applied are the resources that a container runs with.
func (s *slot) applied(c *Container) *corev1.ResourceRequirements {
	if s.resized.id == c.ID && s.resized.to != nil {
		return s.resized.to
	}
	return c.Resources
}

type resized struct {
	id string
	to *corev1.ResourceRequirements
}

// resize asks for what has changed to be granted, and brings it to the containers that run.
func (m *Machine) resize() {
	m.resizing.Active = false
	want := false
	for _, s := range m.slots {
		if s.kind != Regular && s.kind != Sidecar {
			continue
		}
		if s.grant == nil {
			// What it was made with, or else what it asks for, was granted at admission.
			s.grant = s.spec.Resources.DeepCopy()
			if c := s.cur(); c != nil && c.State == Running && c.Resources != nil {
				s.grant = c.Resources
			}
		}
		want = want || !sameResources(s.grant, &s.spec.Resources)
	}
	m.resizing.Unanswered = want && m.asked != m.pod.Generation
	if !want {
		m.resizing.Pending, m.resizing.Message = "", ""
	} else if m.resizing.Pending != "Infeasible" || m.asked != m.pod.Generation {
		m.do(Grant{Generation: m.pod.Generation})
	}
	for _, s := range m.slots {
		if s.kind == Regular || s.kind == Sidecar {
			m.apply1(s)
		}
	}
}

// apply1 brings what is granted to one container.
func (m *Machine) apply1(s *slot) {
	c := s.cur()
	if c == nil || c.State != Running || s.kill != nil || s.starting(c) {
		return
	}
	have := s.applied(c)
	if have == nil || sameResources(have, s.granted()) {
		return
	}
	m.resizing.Active = true
	if s.op != nil {
		return
	}
	for _, p := range s.spec.ResizePolicy {
		if p.RestartPolicy == corev1.RestartContainer && differs(have, s.granted(), p.ResourceName) {
			m.kill(s, m.spare(s), fmt.Sprintf("Container %s resize requires restart", s.spec.Name))
			s.force = m.mayRestart(s)
			return
		}
	}
	if m.delayed(s) {
		return
	}
	s.op = Resize{Container: s.spec.Name, ID: c.ID, From: have, To: s.granted()}
	m.emit(s.op)
}

func (m *Machine) grantDone(a Grant, ev Done) {
	if a.Generation != m.pod.Generation {
		return // the pod asks for something else by now, and the node is asked about that
	}
	m.asked, m.resizing.Unanswered = m.pod.Generation, false
	if ev.Refused {
		m.resizing.Pending, m.resizing.Message = ev.Reason, ev.Message
		if ev.Reason != "Infeasible" {
			// Asked for again: what is in the way may go.
			a := Grant{Generation: m.pod.Generation}
			m.tasks[a] = &task{at: m.now.Add(m.opts.RetryMax)}
		}
		return
	}
	m.resizing.Pending, m.resizing.Message = "", ""
	for _, s := range m.slots {
		if s.kind == Regular || s.kind == Sidecar {
			s.grant = s.spec.Resources.DeepCopy()
		}
	}
}

func (m *Machine) resizeDone(a Resize, ev Done) {
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
	s.resized = resized{id: a.ID, to: a.To}
}
