// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"time"
)

func (m *Machine) done(ev Done) {
	if ev.Container != nil {
		m.seeContainer(*ev.Container)
	}
	switch a := ev.Action.(type) {
	case Pull:
		m.pulled(a, ev)
	case Create:
		m.created(a, ev)
	case Start:
		m.startedContainer(a, ev)
	case PostStart:
		m.hooked(a, ev)
	case Kill:
		m.killed(a, ev)
	case RemoveContainer:
		if s := m.slot(a.Container); s != nil {
			s.op = nil
			if ev.Err != nil {
				s.retryAt = m.now.Add(s.retry.next(m.now, m.opts.RetryInitial, m.opts.RetryMax))
				return
			}
			if m.stage == Finished {
				m.vanish(a.ID) // its end stays in the status
				return
			}
			if a.Again {
				m.removedAgain(s, a.ID)
				return
			}
			m.drop(s, a.ID)
		}
	case Resize:
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

func (m *Machine) taskDone(ev Done) {
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
	case Admit:
		m.admit(ev)
	case Mount:
		m.level.bounded = m.level.mounting
		m.mounted = true // in part, where the pod is refused: that is taken down
		if ev.Refused {
			m.end = &End{Reason: ev.Reason, Message: ev.Message}
		}
	case Grant:
		m.grantDone(a, ev)
	case Bound:
		m.boundDone(a)
	case StartSandbox:
		m.again = backoff{}
		if sb := ev.Sandbox; sb != nil {
			sb.complete = true
			m.seeSandbox(*sb)
		}
	case StopSandbox:
		m.stopped(a.ID)
	case RemoveSandbox:
		m.vanish(a.ID)
		m.dropSandbox(a.ID)
	case Teardown:
		m.stage = max(m.stage, Finished)
	case Delete:
		// The API's own word, a Removed, ends it.
		m.tasks[a] = &task{at: m.now.Add(m.opts.RetryMax)}
	case Cleanup:
		m.stage = Gone
		m.emit(Forget{})
	}
}

func (m *Machine) admit(ev Done) {
	m.started = orElse(m.started, m.now)
	m.admitted = true
	m.stage = max(m.stage, Syncing)
	if ev.Refused {
		m.end = &End{Reason: ev.Reason, Message: ev.Message}
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
			if c := &s.list[i]; c.Sandbox == id && (c.State == Running || c.State == Unknown) {
				c.State, c.Finished, c.ExitCode, c.Reason = Exited, m.now, 137, "Error"
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

func (m *Machine) pulled(a Pull, ev Done) {
	s := m.slot(a.Container)
	if s == nil {
		return
	}
	s.op = nil
	if ev.Err == nil {
		s.image, s.waiting, s.pull = ev.Image, Waiting{}, backoff{}
		return
	}
	s.waiting = Waiting{ev.Reason, ev.Message}
	s.retryAt = m.now.Add(s.pull.next(m.now, m.opts.ImageInitial, m.opts.ImageMax))
	s.shown = m.now.Add(min(2*time.Second, s.pull.delay/2))
}

func (m *Machine) created(a Create, ev Done) {
	s := m.slot(a.Container)
	if s == nil {
		return
	}
	s.op = nil
	if ev.Err != nil {
		m.failed(s, ev)
		return
	}
	s.retry, s.image = backoff{}, ""
	s.force = false
	if ev.Container != nil {
		s.fresh = ev.Container.ID
	}
}

func (m *Machine) failed(s *slot, ev Done) {
	s.waiting = Waiting{ev.Reason, ev.Message}
	s.retryAt = m.now.Add(s.retry.next(m.now, m.opts.RetryInitial, m.opts.RetryMax))
}

func (m *Machine) startedContainer(a Start, ev Done) {
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
	s.waiting = Waiting{}
	if c := s.find(a.ID); c != nil && c.State == Created {
		// The runtime's own word comes with an event; until then, ours.
		c.State, c.Started = Running, m.now
	}
	if s.spec.Lifecycle == nil || s.spec.Lifecycle.PostStart == nil {
		s.hooked = a.ID
	}
}

func (m *Machine) hooked(a PostStart, ev Done) {
	s := m.slot(a.Container)
	if s == nil {
		return
	}
	s.op, s.hooked = nil, a.ID
	if ev.Err == nil || m.killing {
		return
	}
	s.waiting = Waiting{ev.Reason, ev.Message}
	if s.running() && s.kill == nil {
		m.kill(s, m.spare(s), "FailedPostStartHook")
		s.force = m.mayRestart(s)
	}
}

func (m *Machine) killed(a Kill, ev Done) {
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
	if c := s.find(a.ID); c != nil && c.State != Exited {
		c.State, c.Finished, c.ExitCode, c.Reason = Exited, m.now, 137, "Error"
	}
}
