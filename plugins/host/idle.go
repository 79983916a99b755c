// SPDX-License-Identifier: Apache-2.0

package host

import "time"

// idleFor is how long nobody has to ask an instance before it is given up.
const idleFor = time.Minute

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
		m.pool.StopIdle(now.Add(-idleFor))
	}
}

func (h *Host) forget(m *Module) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.modules, m)
}
