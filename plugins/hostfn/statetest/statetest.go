// SPDX-License-Identifier: Apache-2.0

// Package statetest is the contract of hostfn.StateStore as a suite. It is for tests only.
package statetest

import (
	"bytes"
	"fmt"
	"maps"
	"sync"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/hostfn"
)

// Opener gives one more handle to the same place: what a process has after a restart,
// or what another process has beside it.
type Opener func() hostfn.StateStore

// Run runs the suite. Each call of empty prepares a place of its own, in which nothing
// is kept.
func Run(t *testing.T, empty func(t *testing.T) Opener) {
	t.Helper()
	for _, c := range []struct {
		name string
		test func(t *testing.T, open Opener)
	}{
		{"nothing is kept at first", nothing},
		{"a change is answered and kept", kept},
		{"values are bytes", binary},
		{"nil deletes, empty does not", deletes},
		{"plugins do not see each other", apart},
		{"names of tenants' plugins are names", names},
		{"no change changes nothing", reads},
		{"what is returned belongs to the caller", owned},
		{"what another process wrote stays", merges},
		{"plugins are kept side by side", concurrent},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, empty(t)) })
	}
}

func keep(t *testing.T, s hostfn.StateStore, plugin string, changes map[string][]byte) map[string][]byte {
	t.Helper()
	all, err := s.Sync(t.Context(), plugin, changes)
	if err != nil {
		t.Fatalf("sync of %s: %v", plugin, err)
	}
	return all
}

func expect(t *testing.T, got map[string][]byte, want map[string]string) {
	t.Helper()
	same := maps.EqualFunc(got, want, func(g []byte, w string) bool { return string(g) == w })
	if !same {
		t.Errorf("kept %q, want %q", got, want)
	}
}

func nothing(t *testing.T, open Opener) { expect(t, keep(t, open(), "p", nil), nil) }

func kept(t *testing.T, open Opener) {
	want := map[string]string{"a": "1", "b": "2"}
	expect(t, keep(t, open(), "p", map[string][]byte{"a": []byte("1"), "b": []byte("2")}), want)
	expect(t, keep(t, open(), "p", nil), want)
	want["a"] = "3"
	expect(t, keep(t, open(), "p", map[string][]byte{"a": []byte("3")}), want)
	expect(t, keep(t, open(), "p", nil), want)
}

func binary(t *testing.T, open Opener) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	large := bytes.Repeat(all, 256)
	keep(t, open(), "p", map[string][]byte{"all": all, "large": large})
	got := keep(t, open(), "p", nil)
	if !bytes.Equal(got["all"], all) || !bytes.Equal(got["large"], large) {
		t.Errorf("of 256 and %d bytes came back %d and %d, or others", len(large), len(got["all"]), len(got["large"]))
	}
}

func deletes(t *testing.T, open Opener) {
	s := open()
	keep(t, s, "p", map[string][]byte{"a": []byte("1"), "b": {}})
	want := map[string]string{"b": ""}
	expect(t, keep(t, s, "p", map[string][]byte{"a": nil, "never": nil}), want)
	expect(t, keep(t, open(), "p", nil), want)
	expect(t, keep(t, s, "p", map[string][]byte{"b": nil}), nil)
	expect(t, keep(t, open(), "p", nil), nil)
}

func apart(t *testing.T, open Opener) {
	s := open()
	keep(t, s, "p", map[string][]byte{"a": []byte("p's")})
	keep(t, s, "q", map[string][]byte{"a": []byte("q's")})
	keep(t, s, "q", map[string][]byte{"b": []byte("q's")})
	expect(t, keep(t, s, "p", map[string][]byte{"a": nil}), nil)
	expect(t, keep(t, open(), "q", nil), map[string]string{"a": "q's", "b": "q's"})
}

// A plugin of a namespace is called NAMESPACE_NAME, which is no name of an object.
func names(t *testing.T, open Opener) {
	s := open()
	plugins := []string{"p", "red_p", "red-p", "red.p", "blue_p"}
	for _, plugin := range plugins {
		keep(t, s, plugin, map[string][]byte{"mine": []byte(plugin)})
	}
	for _, plugin := range plugins {
		expect(t, keep(t, open(), plugin, nil), map[string]string{"mine": plugin})
	}
}

func reads(t *testing.T, open Opener) {
	s := open()
	keep(t, s, "p", map[string][]byte{"a": []byte("1")})
	for _, none := range []map[string][]byte{nil, {}} {
		expect(t, keep(t, s, "p", none), map[string]string{"a": "1"})
	}
}

func owned(t *testing.T, open Opener) {
	s := open()
	all := keep(t, s, "p", map[string][]byte{"a": []byte("1")})
	clear(all)
	all["b"] = []byte("2")
	expect(t, keep(t, s, "p", nil), map[string]string{"a": "1"})
}

// One process works for one plugin at a time, and for several plugins at once.
func concurrent(t *testing.T, open Opener) {
	s := open()
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() { count(t, s, fmt.Sprintf("p%d", i)) })
	}
	writers.Wait()
	for i := range 4 {
		if all := keep(t, open(), fmt.Sprintf("p%d", i), nil); len(all) != 5 {
			t.Errorf("5 keys were written for p%d, kept are %q", i, all)
		}
	}
}

func count(t *testing.T, s hostfn.StateStore, plugin string) {
	for i := range 5 {
		key := fmt.Sprintf("k%d", i)
		if all, err := s.Sync(t.Context(), plugin, map[string][]byte{key: []byte("x")}); err != nil || len(all) != i+1 {
			t.Errorf("put %s: %d are kept, %v", key, len(all), err)
		}
	}
}

func merges(t *testing.T, open Opener) {
	one, other := open(), open()
	keep(t, one, "p", map[string][]byte{"a": []byte("1")})
	keep(t, other, "p", map[string][]byte{"b": []byte("2")})
	expect(t, keep(t, one, "p", map[string][]byte{"c": []byte("3")}), map[string]string{"a": "1", "b": "2", "c": "3"})
	expect(t, keep(t, other, "p", map[string][]byte{"a": nil}), map[string]string{"b": "2", "c": "3"})
}
