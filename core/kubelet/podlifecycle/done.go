// SPDX-License-Identifier: Apache-2.0

package podlifecycle

import (
	"time"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

func (m *Machine) done(ev pod.Done) {
	if ev.Container != nil {
		m.seeContainer(*ev.Container)
	}
	switch a := ev.Action.(type) {
	case pod.Pull:
		m.pulled(a, ev)
	case pod.Create:
		m.created(a, ev)
	case pod.Start:
		m.startedContainer(a, ev)
	case pod.PostStart:
		m.hooked(a, ev)
	case pod.PreStop:
		if s := m.slot(a.Container); s != nil && s.stopHook != nil && *s.stopHook == a {
			s.stopHooked = true
		}
	case pod.Kill:
		m.killed(a, ev)
	case pod.RemoveContainer:
		if s := m.slot(a.Container); s != nil {
			s.op = nil
			if ev.Err != nil {
				s.retryAt = m.now.Add(s.retry.next(m.now, m.opts.RetryInitial, m.opts.RetryMax))
				return
			}
			if m.stage == pod.Finished {
				m.vanish(a.ID) // its end stays in the status
				return
			}
			if a.Again {
				m.removedAgain(s, a.ID)
				return
			}
			m.drop(s, a.ID)
		}
	case pod.Resize:
		m.resizeDone(a, ev)
	default:
		m.taskDone(ev)
	}
}

// drop forgets a container that we removed.
func (m *Machine) drop(s *slot, id string) {
	m.bury(id)
	for i := range s.list {
		if s.list[i].ID == id {
			s.list = append(s.list[:i:i], s.list[i+1:]...)
			return
		}
	}
}

func (m *Machine) taskDone(ev pod.Done) {
	t := m.tasks[ev.Action]
	if t == nil {
		return
	}
	t.flying = false
	if bounds(ev.Action) && ev.Err != nil {
		m.resizing.Failed = ev.Message
	}
	if startsSandbox(ev.Action) && ev.Err != nil {
		m.againAt = m.now.Add(m.again.next(m.now, m.opts.RetryInitial, m.opts.RetryMax))
		delete(m.tasks, ev.Action)
		return
	}
	if ev.Err != nil {
		t.at = m.now.Add(t.delay.next(m.now, m.opts.RetryInitial, m.opts.RetryMax))
		return
	}
	delete(m.tasks, ev.Action)
	switch a := ev.Action.(type) {
	case pod.Admit:
		m.admit(ev)
	case pod.Mount:
		m.level.bounded = m.level.mounting
		m.mounted = true // in part, where the pod is refused: that is taken down
		if ev.Refused {
			m.end = &pod.End{Reason: ev.Reason, Message: ev.Message}
		}
	case pod.Grant:
		m.grantDone(a, ev)
	case pod.Bound:
		m.boundDone(a)
	case pod.StartSandbox:
		m.again = backoff{}
		if sb := ev.Sandbox; sb != nil {
			m.seeSandbox(*sb, true)
		}
	case pod.StopSandbox:
		m.stopped(a.ID)
	case pod.RemoveSandbox:
		m.vanish(a.ID)
		m.dropSandbox(a.ID)
	case pod.Teardown:
		m.stage = max(m.stage, pod.Finished)
	case pod.Delete:
		// The API's own word, a Removed, ends it.
		m.tasks[a] = &task{at: m.now.Add(m.opts.RetryMax)}
	case pod.Cleanup:
		m.stage = pod.Gone
		m.emit(pod.Forget{})
	}
}

func (m *Machine) admit(ev pod.Done) {
	m.started = orElse(m.started, m.now)
	m.admitted = true
	m.stage = max(m.stage, pod.Syncing)
	if ev.Refused {
		m.end = &pod.End{Reason: ev.Reason, Message: ev.Message}
	}
}

func (m *Machine) stopped(id string) {
	for i := range m.sandboxes {
		if m.sandboxes[i].ID == id {
			m.sandboxes[i].stopped, m.sandboxes[i].Ready = true, false
		}
	}
	// Stopping a sandbox ends what ran in it, whether or not its end was seen.
	for _, s := range m.slots {
		for i := range s.list {
			if c := &s.list[i]; c.Sandbox == id && (c.State == pod.Running || c.State == pod.Unknown) {
				c.State, c.Finished, c.ExitCode, c.Reason = pod.Exited, m.now, 137, "Error"
			}
		}
	}
}

func (m *Machine) dropSandbox(id string) {
	for _, s := range m.slots {
		keep := s.list[:0:0]
		for _, c := range s.list {
			if c.Sandbox != id {
				keep = append(keep, c)
			}
		}
		s.list = keep
	}
}

func (m *Machine) pulled(a pod.Pull, ev pod.Done) {
	s := m.slot(a.Container)
	if s == nil {
		return
	}
	s.op = nil
	if ev.Err == nil {
		s.image, s.waiting, s.pull = ev.Image, pod.Waiting{}, backoff{}
		return
	}
	m.notPulled(s, ev)
}

func (m *Machine) notPulled(s *slot, ev pod.Done) {
	s.waiting = pod.Waiting{Reason: ev.Reason, Message: ev.Message}
	s.retryAt = m.now.Add(s.pull.next(m.now, m.opts.ImageInitial, m.opts.ImageMax))
	s.shown = m.now.Add(min(2*time.Second, s.pull.delay/2))
}

func (m *Machine) created(a pod.Create, ev pod.Done) {
	s := m.slot(a.Container)
	if s == nil {
		return
	}
	s.op = nil
	if ev.Err != nil && ev.Reason == errImagePull {
		m.notPulled(s, ev) // the image of a volume
		return
	}
	if ev.Err != nil {
		m.failed(s, ev)
		return
	}
	s.retry, s.pull, s.image = backoff{}, backoff{}, ""
	s.force = false
	if ev.Container != nil {
		s.fresh = ev.Container.ID
	}
}

func (m *Machine) failed(s *slot, ev pod.Done) {
	s.waiting = pod.Waiting{Reason: ev.Reason, Message: ev.Message}
	s.retryAt = m.now.Add(s.retry.next(m.now, m.opts.RetryInitial, m.opts.RetryMax))
}

func (m *Machine) startedContainer(a pod.Start, ev pod.Done) {
	s := m.slot(a.Container)
	if s == nil {
		return
	}
	s.op = nil
	if ev.Err != nil {
		m.failed(s, ev)
		// Whatever state it is in, it is not ours to start again.
		s.fresh = ""
		return
	}
	s.waiting = pod.Waiting{}
	if c := s.find(a.ID); c != nil && c.State == pod.Created {
		// The runtime's own word comes with an event; until then, ours.
		c.State, c.Started = pod.Running, m.now
	}
	if s.spec.Lifecycle == nil || s.spec.Lifecycle.PostStart == nil {
		s.hooked = a.ID
	}
}

func (m *Machine) hooked(a pod.PostStart, ev pod.Done) {
	s := m.slot(a.Container)
	if s == nil {
		return
	}
	s.op, s.hooked = nil, a.ID
	if ev.Err == nil || m.killing {
		return
	}
	s.waiting = pod.Waiting{Reason: ev.Reason, Message: ev.Message}
	if s.running() && s.kill == nil {
		m.kill(s, m.spare(s), "FailedPostStartHook")
		s.force = m.mayRestart(s)
	}
}

func (m *Machine) killed(a pod.Kill, ev pod.Done) {
	s := m.slot(a.Container)
	if s == nil || s.kill == nil || *s.kill != a {
		return
	}
	s.kill = nil
	if ev.Err != nil {
		s.retryAt = m.now.Add(s.killErr.next(m.now, m.opts.RetryInitial, m.opts.RetryMax))
		return
	}
	s.killErr = backoff{}
	if c := s.find(a.ID); c != nil && c.State != pod.Exited {
		c.State, c.Finished, c.ExitCode, c.Reason = pod.Exited, m.now, 137, "Error"
	}
}
