// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
)

// TestInstancesThatNobodyAsksAreGivenUp: all of them where another starts at once, all but one
// where it does not; and what is asked again answers.
func TestInstancesThatNobodyAsksAreGivenUp(t *testing.T) {
	h := newHost(t, false)
	m := load(t, h, assemble(t, guest(`(func $run (param i32 i32) (result i64) (i64.const 0))`)), host.Options{})
	ask := func() {
		t.Helper()
		if _, _, err := m.Call(t.Context(), 1, nil); err != nil {
			t.Fatal(err)
		}
	}
	two := func() {
		t.Helper()
		a, err := m.Lease(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ask()
		m.Release(a, nil)
	}
	later := func(d time.Duration, want int) {
		t.Helper()
		h.GiveUpIdle(time.Now().Add(d))
		if got := m.Instances(); got != want {
			t.Fatalf("%s after the last call there are %d instances, expected %d", d, got, want)
		}
	}
	two()
	m.Started(time.Second)
	later(10*time.Second, 2)
	later(2*time.Minute, 1)
	ask()
	m.Started(time.Millisecond)
	later(10*time.Second, 1)
	later(2*time.Minute, 0)
	ask()
	later(0, 1)

	leased, err := m.Lease(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	later(time.Hour, 1) // whoever holds it may ask it
	m.Discard(leased)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	later(time.Hour, 0)
}

// TestOneModuleIsCompiledOnce: plugins that run the same module share its code, whichever of them
// goes first, and have memories of their own.
func TestOneModuleIsCompiledOnce(t *testing.T) {
	h := newHost(t, false)
	wasm := assemble(t, guest(`(global $n (mut i64) (i64.const 0))
		(func $run (param i32 i32) (result i64)
			(global.set $n (i64.add (global.get $n) (i64.const 1)))
			(i64.store (i32.const 8) (global.get $n))
			(i64.const 0x800000008))`))
	ask := func(m *host.Module) byte {
		t.Helper()
		out, _, err := m.Call(t.Context(), 1, nil)
		if err != nil || len(out) != 8 {
			t.Fatal(out, err)
		}
		return out[0]
	}
	a, err := h.Compile(t.Context(), wasm, host.Options{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	b := load(t, h, wasm, host.Options{Name: "b"})
	c := load(t, h, wasm, host.Options{Name: "c", Limits: host.Limits{Memory: 1 << 20}}) // other code
	if n := h.Codes(); n != 2 {
		t.Errorf("%d modules are compiled, expected 2", n)
	}
	if got := []byte{ask(a), ask(a), ask(b), ask(c), ask(a)}; string(got) != "\x01\x02\x01\x01\x03" {
		t.Errorf("plugins that share code counted %v", got)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	h.GiveUpIdle(time.Now().Add(time.Hour))
	if got := ask(b); got != 1 && got != 2 { // a new instance, where the one before started at once
		t.Errorf("after another plugin had gone it counted %d", got)
	}
	if n := h.Codes(); n != 2 {
		t.Errorf("after the end of one of its plugins %d modules are compiled, expected 2", n)
	}
}
