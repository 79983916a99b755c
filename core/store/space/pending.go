// SPDX-License-Identifier: Apache-2.0

package space

import (
	"math"
	"slices"
	"sync"
)

// pending is growth that was admitted and that Config.Namespace does not show yet: of writes that are being done, and
// of those whose revision has not been seen. Without it a namespace takes as much more than its share as it has writes
// in one moment, which for a controller's burst of pods is many times as much.
type pending struct {
	mu sync.Mutex
	of map[string]*growth
}

type growth struct {
	underWay int64 // bytes
	written  []written
}

type written struct{ revision, bytes int64 }

// pendingKept is how many namespaces are looked through each time one more has something pending.
const pendingKept = 1000

// take adds a write's bytes if the namespace has room for them, beside what it has taken; else it says what it has.
// seen is up to which revision taken shows everything. done is called once, with the revision at which the write was
// done; 0 = it was not.
func (p *pending) take(namespace string, bytes, quota int64, seen func() int64, taken func(string) int64) (
	done func(revision int64), has int64, ok bool,
) {
	p.mu.Lock()
	defer p.mu.Unlock()
	revision := seen() // before what it shows
	g := p.of[namespace]
	if g == nil {
		g = &growth{}
	}
	has = taken(namespace) + g.forget(revision)
	if has+bytes > quota {
		return nil, has, false
	}
	if p.of == nil {
		p.of = map[string]*growth{}
	}
	if len(p.of) > pendingKept {
		for name, other := range p.of {
			if other.forget(revision) == 0 {
				delete(p.of, name)
			}
		}
	}
	p.of[namespace] = g
	g.underWay += bytes
	return func(at int64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		g.underWay -= bytes
		if at > 0 {
			g.written = append(g.written, written{at, bytes})
		}
	}, has, true
}

// forget drops what has been seen, and answers what is left.
func (g *growth) forget(seen int64) (left int64) {
	g.written = slices.DeleteFunc(g.written, func(w written) bool { return w.revision <= seen })
	left = g.underWay
	for _, w := range g.written {
		left += w.bytes
	}
	return left
}

// everything is the revision of what shows each write at once.
func everything() int64 { return math.MaxInt64 }
