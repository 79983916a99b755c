// SPDX-License-Identifier: Apache-2.0

package host

import "time"

const (
	// idleFor is how long nobody has to ask an instance before it is given up.
	idleFor = time.Minute
	// soonStarted is how long the last instance may have taken to start so that none waits for the next
	// call: most of a thousand policies are not asked for hours.
	soonStarted = 5 * time.Millisecond
)

// watchIdle gives up what nobody asks, until the host is closed.
func (h *Host) watchIdle() {
	ticker := time.NewTicker(idleFor / 2)
	defer ticker.Stop()
	for {
		select {
		case <-h.life.Done():
			return
		case now := <-ticker.C:
			h.giveUpIdle(now)
		}
	}
}

func (h *Host) giveUpIdle(now time.Time) {
	h.mu.Lock()
	all := make([]*Module, 0, len(h.modules))
	for m := range h.modules {
		all = append(all, m)
	}
	h.mu.Unlock()
	for _, m := range all {
		for _, in := range m.takeIdle(now.Add(-idleFor)) {
			m.drop(in)
			m.work.Done()
		}
	}
}

// takeIdle takes the instances out of the pool that nobody has asked since then, but for one where
// the next call would have to wait for another. They count as work, so that Close waits for them.
func (m *Module) takeIdle(since time.Time) []*Instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	kept := 1
	if m.startTook < soonStarted {
		kept = 0
	}
	n := 0 // the one that was asked last is the last one
	for n < len(m.idle)-kept && m.idle[n].meter.lastPoint.Before(since) {
		n++
	}
	if n == 0 {
		return nil
	}
	out := m.idle[:n:n]
	m.idle = append([]*Instance(nil), m.idle[n:]...)
	m.work.Add(n)
	return out
}

// started remembers how long an instance took to start.
func (m *Module) started(took time.Duration) {
	m.mu.Lock()
	m.startTook = took
	m.mu.Unlock()
}

func (h *Host) forget(m *Module) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.modules, m)
}
