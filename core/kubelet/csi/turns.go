// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"fmt"
	"sync"
)

// id is one volume of one driver.
type id struct{ driver, handle string }

// turns lets one at a time do something about a volume. Whoever waits gives up with its context.
type turns struct {
	mu   sync.Mutex
	held map[id]*turn
}

type turn struct {
	token   chan struct{}
	waiting int
}

// take waits for the turn about a volume, and answers how to give it back.
func (t *turns) take(ctx context.Context, v id) (func(), error) {
	t.mu.Lock()
	if t.held == nil {
		t.held = map[id]*turn{}
	}
	one := t.held[v]
	if one == nil {
		one = &turn{token: make(chan struct{}, 1)}
		t.held[v] = one
	}
	one.waiting++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if one.waiting--; one.waiting == 0 {
			delete(t.held, v)
		}
	}
	select {
	case one.token <- struct{}{}:
		return func() { <-one.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("wait for what is being done about volume %s of driver %s: %w", v.handle, v.driver, ctx.Err())
	}
}

// marks are volumes of which something is known as long as this process lives.
type marks struct {
	mu  sync.Mutex
	set map[id]bool
}

func (m *marks) has(v id) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.set[v]
}

func (m *marks) put(v id, on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !on {
		delete(m.set, v)
		return
	}
	if m.set == nil {
		m.set = map[id]bool{}
	}
	m.set[v] = true
}
