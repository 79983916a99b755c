// SPDX-License-Identifier: Apache-2.0

package codes_test

import (
	"context"
	"testing"

	"github.com/tetratelabs/wazero"

	"github.com/wasmplane/wasmplane/plugins/host/codes"
)

// code counts how often it is closed.
type code struct {
	wazero.CompiledModule
	closed int
}

func (c *code) Close(context.Context) error {
	c.closed++
	return nil
}

func TestTheLastUserClosesTheCode(t *testing.T) {
	var s codes.Set
	first, second, alone := &code{}, &code{}, &code{}
	if s.Take("k") != nil {
		t.Fatal("an empty set has code")
	}
	put := func(c, want *code) {
		t.Helper()
		if got, err := s.Put(t.Context(), "k", c); err != nil || got != want {
			t.Fatalf("put %p and got %p, %v, expected %p", c, got, err, want)
		}
	}
	release := func(c *code, closed int) {
		t.Helper()
		if err := s.Release(t.Context(), c); err != nil || c.closed != closed {
			t.Fatalf("closed %d times, %v, expected %d", c.closed, err, closed)
		}
	}
	put(first, first)
	put(second, first) // somebody was faster
	if second.closed != 1 {
		t.Errorf("code that nobody runs was closed %d times", second.closed)
	}
	if s.Take("k") != first || s.Take("other") != nil {
		t.Error("code is found under the wrong key")
	}
	release(first, 0)
	release(first, 0)
	release(first, 1)
	if s.Take("k") != nil || s.Len() != 0 {
		t.Error("closed code is handed out")
	}
	release(alone, 1) // never put
	put(second, second)
}
