// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"maps"
	"time"

	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
)

// Bounds of measuring directories of pods, which may hold a great many files.
const (
	longest = time.Minute // that one directory is measured; what has not been counted by then is not
	share   = 10          // at most one part in so many of the time goes into measuring
)

// meter measures directories. What takes long to measure is not measured again for a while: until then it is what it was.
type meter struct {
	known map[string]reading
}

type reading struct {
	usage diskusage.Usage
	until time.Time // it is measured again
	asked bool      // since the last sweep
}

func (m *meter) of(ctx context.Context, dir string) diskusage.Usage {
	began := time.Now()
	r, ok := m.known[dir]
	if !ok || !began.Before(r.until) {
		bounded, cancel := context.WithTimeout(ctx, longest)
		defer cancel()
		r.usage = diskusage.Of(bounded, dir)
		r.until = began.Add(share * time.Since(began) * time.Duration(1+len(m.known)))
	}
	r.asked = true
	if m.known == nil {
		m.known = map[string]reading{}
	}
	m.known[dir] = r
	return r.usage
}

// renew has everything measured again, whatever it costs.
func (m *meter) renew() {
	for dir, r := range m.known {
		r.until = time.Time{}
		m.known[dir] = r
	}
}

// sweep forgets what nobody has asked for since it was called before.
func (m *meter) sweep() {
	maps.DeleteFunc(m.known, func(_ string, r reading) bool { return !r.asked })
	for dir, r := range m.known {
		r.asked = false
		m.known[dir] = r
	}
}
