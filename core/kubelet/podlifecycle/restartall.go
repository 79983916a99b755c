// SPDX-License-Identifier: Apache-2.0

package podlifecycle

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

const restartingAllMessage = "The container is removed because RestartAllContainers in place"

// source tells whether the slot's container has ended in a way that restarts the whole pod.
func (s *slot) source() bool {
	c := s.cur()
	return s.kind != pod.Ephemeral && c != nil && c.State == pod.Exited && !c.Lost() && pod.RestartsAll(s.spec, c.ExitCode)
}

// restartingAll tells whether the pod is being cleared to start again. It follows from what the runtime
// holds alone, so that a Machine that begins in the middle goes on.
func (m *Machine) restartingAll() bool {
	for _, s := range m.slots {
		if s.source() {
			return true
		}
	}
	return false
}

// clearAll ends and removes all containers but the ephemeral ones. Those whose end is the reason go last:
// as long as one is there, the others are known to be in the way.
func (m *Machine) clearAll() {
	left := false
	for i := len(m.slots) - 1; i >= 0; i-- {
		if s := m.slots[i]; s.kind != pod.Ephemeral && !s.source() {
			left = m.clear(s) || left
		}
	}
	for i := len(m.slots) - 1; i >= 0 && !left; i-- {
		if s := m.slots[i]; s.source() {
			left = m.clear(s)
		}
	}
}

// clear ends and removes the containers of a name. It reports whether it is not through.
func (m *Machine) clear(s *slot) (left bool) {
	if s.running() {
		m.kill(s, 0, "Stopping container "+s.spec.Name)
		return true
	}
	if s.op != nil || s.kill != nil {
		return true
	}
	for i := len(s.list) - 1; i >= 0; i-- {
		c := &s.list[i]
		if c.Lost() {
			continue
		}
		if !m.delayed(s) {
			s.op = pod.RemoveContainer{Container: s.spec.Name, ID: c.ID, Again: true}
			m.emit(s.op)
		}
		return true
	}
	if c := s.cur(); c != nil && !c.again() {
		s.restartAgain() // the runtime lost it before
	}
	return false
}

// removedAgain takes note that a container was removed for its pod to start again. What was there last stays as
// a record: its count of restarts goes on.
func (m *Machine) removedAgain(s *slot, id string) {
	c := s.cur()
	if c == nil || c.ID != id {
		m.drop(s, id)
		return
	}
	source := s.source()
	m.bury(id)
	s.restartAgain()
	if source {
		s.gated = "" // alone it waits for its back-off: the others were ended for its sake
	}
}

// restartAgain turns the newest container into a record of one that was removed for its pod to start again.
func (s *slot) restartAgain() {
	c := s.cur()
	c.ID, c.Sandbox, c.State = "", "", pod.Exited
	c.ExitCode, c.Reason, c.Message = 137, pod.RestartingAllContainers, restartingAllMessage
	s.begun, s.force, s.gated = "", false, c.gateKey()
	s.waiting = pod.Waiting{Reason: pod.RestartingAllContainers, Message: restartingAllMessage}
}

// adoptRestartAll goes on where a kubelet ended between the removal of a container and the status that tells of it.
func (m *Machine) adoptRestartAll(st *corev1.PodStatus) {
	began := slices.ContainsFunc(st.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.AllContainersRestarting && c.Status == corev1.ConditionTrue
	})
	for _, s := range m.slots {
		if c := s.cur(); s.kind != pod.Ephemeral && c != nil && c.Lost() && (began || c.again()) {
			s.restartAgain()
		}
	}
}

// again tells a container that was removed for its pod to start again, and has not been made anew.
func (c *container) again() bool { return c.Lost() && c.Reason == pod.RestartingAllContainers }
