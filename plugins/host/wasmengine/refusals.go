// SPDX-License-Identifier: Apache-2.0

package wasmengine

import (
	"errors"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host/compiler"
)

// A module that was too expensive is not compiled again for some time: whoever loads
// plugins tries again what failed.
const (
	refusalHolds = 10 * time.Minute
	mostRefusals = 1000
)

// refusals remembers which modules were too expensive to compile.
type refusals struct {
	mu    sync.Mutex
	known map[refused]refusal
}

// refused is what was refused: tenants' limits are others than operators'.
type refused struct {
	key    string
	tenant bool
}

// refusal is why, and until when that holds.
type refusal struct {
	err   error
	until time.Time
}

// find is the error with which a module was refused lately, or nil.
func (r *refusals) find(key, tenant string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, ok := r.known[refused{key, tenant != ""}]; ok && time.Now().Before(known.until) {
		return known.err
	}
	return nil
}

// add remembers an error that says that a module is too expensive, and no other.
func (r *refusals) add(key, tenant string, err error) {
	var too *compiler.Exceeded
	if !errors.As(err, &too) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil || len(r.known) >= mostRefusals {
		r.known = map[refused]refusal{}
	}
	r.known[refused{key, tenant != ""}] = refusal{err: err, until: time.Now().Add(refusalHolds)}
}
