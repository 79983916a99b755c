// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Conform holds a module against what sdk/spec asks of every guest, whatever it
// decides: on both engines, from fresh memory and after many calls. It is for the
// tests of SDKs and of plugins; Run is for what a plugin decides.
//
// A guest conforms when
//   - its manifest can be read, and is the same in every instance and at every time;
//   - each hook answers in its point's form, or with an error, to documents that are
//     usual, empty, large, and full of what is absent or null: it never traps;
//   - settings that make no sense are refused by an error, or taken, and not by a trap;
//   - the same input has the same answer and costs the same fuel on both engines,
//     from fresh memory;
//   - it keeps working: thousands of calls fit into its memory.
func Conform(t *testing.T, wasm []byte, e manifest.Entry) {
	t.Helper()
	var first *answers
	for _, interpreted := range []bool{false, true} {
		name := "compiled"
		if interpreted {
			name = "interpreted"
		}
		t.Run(name, func(t *testing.T) {
			a := conformOn(t, wasm, e, interpreted)
			if first == nil {
				first = a
				return
			}
			a.compare(t, first)
		})
	}
}

// answers are what a module answered from fresh memory.
type answers struct {
	names []string
	bytes [][]byte
	fuel  []int64
	err   []string
}

func (a *answers) add(name string, answer []byte, fuel int64, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	a.names, a.bytes = append(a.names, name), append(a.bytes, answer)
	a.fuel, a.err = append(a.fuel, fuel), append(a.err, text)
}

func (a *answers) compare(t *testing.T, compiled *answers) {
	t.Helper()
	if len(a.names) != len(compiled.names) {
		t.Fatalf("%d questions interpreted, %d compiled", len(a.names), len(compiled.names))
	}
	for i, name := range a.names {
		if !bytes.Equal(a.bytes[i], compiled.bytes[i]) || a.err[i] != compiled.err[i] {
			t.Errorf("%s: interpreted it answers %q (error %q), compiled %q (error %q)", name, a.bytes[i], a.err[i], compiled.bytes[i],
				compiled.err[i])
		}
		if a.fuel[i] != compiled.fuel[i] {
			t.Errorf("%s: interpreted it uses %d units of fuel, compiled %d", name, a.fuel[i], compiled.fuel[i])
		}
	}
}

func conformOn(t *testing.T, wasm []byte, e manifest.Entry, interpreted bool) *answers {
	t.Helper()
	h, err := host.New(t.Context(), host.Config{InProcess: true, Interpreter: interpreted})
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, h.Close)
	out := &answers{}
	g, err := NewGuest(t.Context(), h, wasm, &e)
	if err != nil {
		t.Fatalf("it cannot be loaded: %v", err)
	}
	defer closing(t, g.Close)
	g.describesAlike(t)
	for i := range g.Manifest.Hooks {
		hook := &g.Manifest.Hooks[i]
		for _, d := range Documents(hook.Point) {
			name := fmt.Sprintf("%s, %s", hook.Point, d.Name)
			if hook.Point == abi.SchedulingTable {
				continue // asked by rows, not by documents
			}
			fresh, err := NewGuest(t.Context(), h, wasm, &e)
			if err != nil {
				t.Fatal(err)
			}
			answer, usage, err := fresh.Ask(t.Context(), hook.Point, d.Kind, d.Document)
			out.add(name, answer, usage.Fuel, err)
			checkAnswer(t, hook, name, answer, err)
			closing(t, fresh.Close)
		}
	}
	g.keepsWorking(t, interpreted)
	refusesSettings(t, h, wasm, e, g.Manifest.Settings)
	return out
}

func closing(t *testing.T, c func() error) {
	t.Helper()
	if err := c(); err != nil {
		t.Error(err)
	}
}

// checkAnswer wants an answer in the point's form, or an error that is a value.
func checkAnswer(t *testing.T, h *abi.Hook, name string, answer []byte, err error) {
	t.Helper()
	var said *host.GuestError
	if errors.As(err, &said) {
		return
	}
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if err := abi.CheckAnswer(h, answer, sampleNodes); err != nil {
		t.Errorf("%s: it answers %q: %v", name, answer, err)
	}
}

// describesAlike asks for the manifest often, and of several instances.
func (g *Guest) describesAlike(t *testing.T) {
	t.Helper()
	var first []byte
	ask := func(in *host.Instance) error {
		b, err := in.Describe(t.Context())
		if err != nil {
			return err
		}
		if first == nil {
			first = b
		}
		if !bytes.Equal(b, first) {
			t.Errorf("describe answers %s, and another time %s", b, first)
		}
		return nil
	}
	err := g.module.With(t.Context(), func(in *host.Instance) error {
		return errors.Join(ask(in), ask(in), g.module.With(t.Context(), ask))
	})
	if err != nil {
		t.Errorf("describe: %v", err)
	}
}

// keepsWorking asks one instance again and again, with large documents in between.
func (g *Guest) keepsWorking(t *testing.T, interpreted bool) {
	t.Helper()
	rounds := 2000
	if interpreted {
		rounds = 50
	}
	for i := range g.Manifest.Hooks {
		h := &g.Manifest.Hooks[i]
		if h.Point == abi.SchedulingTable {
			continue
		}
		for n := range rounds {
			docs := Documents(h.Point)
			d := docs[n%len(docs)]
			_, usage, err := g.Ask(t.Context(), h.Point, d.Kind, d.Document)
			var said *host.GuestError
			if err != nil && !errors.As(err, &said) {
				t.Errorf("%s: call %d fails, with %d bytes of memory: %v", h.Point, n+1, usage.Memory, err)
				return
			}
		}
	}
}

// refusesSettings passes settings that no plugin expects.
func refusesSettings(t *testing.T, h *host.Host, wasm []byte, e manifest.Entry, takes bool) {
	t.Helper()
	if !takes {
		return
	}
	for _, settings := range []string{
		`{}`, `{"no such setting": [1, {"a": null}], "name": 5}`,
		`{"` + strings.Repeat("k", 4096) + `": true}`,
	} {
		m, err := h.Compile(t.Context(), wasm, host.Options{
			Name: e.Name, Limits: e.HostLimits(), Funcs: Funcs(&e),
			Setup: func(ctx context.Context, in *host.Instance) error {
				_, _, err := in.StartCall(ctx, abi.OpSettings, []byte(settings))
				return err
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		var said *host.GuestError
		if err := m.Warm(t.Context()); err != nil && !errors.As(err, &said) {
			t.Errorf("settings %.80s: %v", settings, err)
		}
		closing(t, m.Close)
	}
}
