// SPDX-License-Identifier: Apache-2.0

// Package exits has others wait for the ends of a pod's containers.
//
// It guarantees that a wait ends once the container is known to run no more, and at
// once for one that does not run. It is safe for concurrent use; it asks no runtime.
package exits

import "sync"

// Exits of the containers of one pod. The zero value has none that run.
type Exits struct {
	mu      sync.Mutex
	running map[string]string // IDs by name
	waited  map[string]chan struct{}
}

// Set tells which containers run, by their names with their IDs, and ends the waits for all others.
func (e *Exits) Set(running map[string]string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = running
	for id, ch := range e.waited {
		if !e.runs(id) {
			close(ch)
			delete(e.waited, id)
		}
	}
}

// Running is the ID of the container of a name; "" where it does not run.
func (e *Exits) Running(name string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.running[name]
}

// Of is closed when the container of an ID runs no more.
func (e *Exits) Of(id string) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	ch, ok := e.waited[id]
	if ok {
		return ch
	}
	ch = make(chan struct{})
	if !e.runs(id) {
		close(ch)
		return ch
	}
	if e.waited == nil {
		e.waited = map[string]chan struct{}{}
	}
	e.waited[id] = ch
	return ch
}

func (e *Exits) runs(id string) bool {
	for _, r := range e.running {
		if r == id {
			return true
		}
	}
	return false
}
