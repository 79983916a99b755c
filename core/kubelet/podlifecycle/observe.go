// SPDX-License-Identifier: Apache-2.0

package podlifecycle

import (
	"sort"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// observe merges: what is older than what is known changes nothing.
func (m *Machine) observe(snap pod.Snapshot) {
	for _, sb := range snap.Sandboxes {
		m.seeSandbox(sb, false)
	}
	for _, c := range snap.Containers {
		m.seeContainer(c)
	}
}

func (m *Machine) seeSandbox(sb pod.Sandbox, complete bool) {
	if m.buried(sb.ID) {
		return
	}
	for i := range m.sandboxes {
		if known := &m.sandboxes[i]; known.ID == sb.ID {
			known.Ready = known.Ready && sb.Ready
			known.complete = known.complete || complete
			if len(sb.IPs) > 0 {
				known.IPs = sb.IPs
			}
			return
		}
	}
	m.sandboxes = append(m.sandboxes, sandbox{Sandbox: sb, seen: m.now, complete: complete})
	sort.SliceStable(m.sandboxes, func(i, j int) bool {
		a, b := &m.sandboxes[i], &m.sandboxes[j]
		if a.Attempt != b.Attempt {
			return a.Attempt > b.Attempt
		}
		return a.Created.After(b.Created)
	})
}

func (m *Machine) seeContainer(c pod.Container) {
	s := m.slot(c.Name)
	if s == nil || c.ID == "" || m.buried(c.ID) {
		return
	}
	if known := s.find(c.ID); known != nil {
		if c.State >= known.State {
			if c.Sandbox == "" {
				c.Sandbox = known.Sandbox
			}
			known.Container = c
		}
		return
	}
	// What was only inferred from the status gives way to what is really there.
	keep := s.list[:0:0]
	for _, o := range s.list {
		if !o.Lost() || o.RestartCount != c.RestartCount {
			keep = append(keep, o)
		}
	}
	s.list = append(keep, container{Container: c, seen: m.now})
	sort.SliceStable(s.list, func(i, j int) bool {
		a, b := &s.list[i], &s.list[j]
		if a.RestartCount != b.RestartCount {
			return a.RestartCount > b.RestartCount
		}
		return a.Created.After(b.Created)
	})
}

// sweep drops what a complete observation no longer has.
func (m *Machine) sweep(ev pod.Observed) {
	there := map[string]bool{}
	for i := range ev.Snapshot.Sandboxes {
		there[ev.Snapshot.Sandboxes[i].ID] = true
	}
	for i := range ev.Snapshot.Containers {
		there[ev.Snapshot.Containers[i].ID] = true
	}
	var gone []string
	for i := range m.sandboxes {
		if sb := &m.sandboxes[i]; !there[sb.ID] && sb.seen.Before(ev.Since) {
			gone = append(gone, sb.ID)
		}
	}
	for _, s := range m.slots {
		for i := range s.list {
			if c := &s.list[i]; !c.Lost() && !there[c.ID] && c.seen.Before(ev.Since) {
				gone = append(gone, c.ID)
			}
		}
	}
	for _, id := range gone {
		m.vanish(id)
	}
}

// vanish takes note that the runtime no longer has a container or sandbox.
func (m *Machine) vanish(id string) {
	m.bury(id)
	for i := range m.sandboxes {
		if m.sandboxes[i].ID == id {
			m.sandboxes = append(m.sandboxes[:i:i], m.sandboxes[i+1:]...)
			break
		}
	}
	s, c := m.byID(id)
	if c == nil {
		return
	}
	if op, ok := s.op.(pod.RemoveContainer); ok && op.Again && op.ID == id {
		m.removedAgain(s, id) // the runtime tells of it before the removal itself has come back
		return
	}
	if c == s.cur() && c.State != pod.Created {
		// The status still needs it.
		if c.State != pod.Exited {
			c.unknownEnd()
			c.Finished = m.now
		}
		c.ID = ""
		return
	}
	for i := range s.list {
		if s.list[i].ID == id {
			s.list = append(s.list[:i:i], s.list[i+1:]...)
			return
		}
	}
}
