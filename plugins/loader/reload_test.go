// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// tiny is a module that refuses everything with a message; body, if not empty, is
// what it does before.
func tiny(tb testing.TB, message, body string) []byte {
	tb.Helper()
	wasm, err := assemble(message, body)
	if err != nil {
		tb.Fatal(err)
	}
	return wasm
}

func assemble(message, body string) ([]byte, error) {
	return assembleAs("", message, body)
}

// assembleAs has more in the manifest, which ends with a comma.
func assembleAs(more, message, body string) ([]byte, error) {
	manifest := `{"abi":1,"name":"tiny","version":"1",` + more + `"hooks":[{"op":1,"point":"admission.validate","fields":["operation"]}]}`
	answer := fmt.Sprintf(`{"allowed":false,"message":%q}`, message)
	esc := strings.NewReplacer(`"`, `\"`, `\`, `\\`)
	return wat.Assemble(fmt.Sprintf(`(module
		(memory (export "memory") 1)
		(data (i32.const 0) "%s") (data (i32.const 4096) "%s")
		(func (export "describe") (result i64) (i64.const %d))
		(func (export "alloc") (param i32) (result i32) (i32.const 8192))
		(func (export "call") (param $op i32) (param $at i32) (param $length i32) (result i64) %s (i64.const %d)))`,
		esc.Replace(manifest), esc.Replace(answer), len(manifest), body, 4096<<32|len(answer)))
}

// replaceFile puts a file in place as a build does: by rename.
func replaceFile(tb testing.TB, path string, content []byte) {
	tb.Helper()
	if err := os.WriteFile(path+".new", content, 0o644); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		tb.Fatal(err)
	}
}

func validate(tb testing.TB, p admission.Plugin) error {
	tb.Helper()
	return p.(admission.Validator).Validate(tb.Context(), admissiontest.Creating("pods", pod("a:1", nil)))
}

func tinyLoader(tb testing.TB, dir string) *loader.Loader {
	tb.Helper()
	l, err := loader.New(tb.Context(), loader.Config{InProcess: true, Dir: dir, Entries: entries(tb, `
plugins:
  - {name: tiny, source: "file:tiny.wasm", points: [admission.validate]}
`)})
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func TestAFileThatChangesIsLoadedWithoutARestart(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "tiny.wasm")
	replaceFile(t, path, tiny(t, "version one", ""))
	l := tinyLoader(t, dir)
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer func() {
		cancel()
		wg.Wait()
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	p := l.AdmissionPlugins()[0]
	if err := validate(t, p); err == nil || !strings.Contains(err.Error(), "version one") {
		t.Fatalf("error %v", err)
	}
	<-l.Changes()
	for n, want := range []struct{ content, message, status string }{
		{string(tiny(t, "version two", "")), "version two", ""},
		{"garbage", "version two", "not a valid WebAssembly module"},
		{string(tiny(t, "version three", "")), "version three", ""},
	} {
		replaceFile(t, path, []byte(want.content))
		select {
		case <-l.Changes():
		case <-time.After(30 * time.Second):
			t.Fatal("the change was not noticed")
		}
		if err := validate(t, p); err == nil || !strings.Contains(err.Error(), want.message) {
			t.Errorf("change %d: error %v, want %q", n, err, want.message)
		}
		if s := l.Status()[0]; !s.Ready || !strings.Contains(s.Error, want.status) || want.status == "" && s.Error != "" {
			t.Errorf("change %d: status %+v, want %q", n, s, want.status)
		}
	}
}

func TestReloadsUnderLoadLeakNothing(t *testing.T) {
	defer goleak.VerifyNone(t)
	reloadUnderLoad(t, 100, 200)
}

// BenchmarkAThousandReloads is the same at full size: the first ones warm up, the
// others must not cost anything that stays.
func BenchmarkAThousandReloads(b *testing.B) {
	for b.Loop() {
		reloadUnderLoad(b, 200, 800)
	}
}

// reloadUnderLoad reloads a plugin again and again while it is asked without a pause.
func reloadUnderLoad(tb testing.TB, warm, more int) {
	tb.Helper()
	dir := tb.TempDir()
	path := filepath.Join(dir, "tiny.wasm")
	replaceFile(tb, path, tiny(tb, "version 0", ""))
	l := tinyLoader(tb, dir)
	if err := l.Load(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	p := l.AdmissionPlugins()[0]
	var stop atomic.Bool
	var calls atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for !stop.Load() {
				if err := validate(tb, p); err == nil || !strings.Contains(err.Error(), `denied the request: version `) {
					tb.Errorf("a call in the middle of a reload: %v", err)
					return
				}
				calls.Add(1)
			}
		})
	}
	reload := func(n int) {
		replaceFile(tb, path, tiny(tb, "version "+strconv.Itoa(n), ""))
		if err := l.Apply(tb.Context(), loader.File, entries(tb, `
plugins:
  - {name: tiny, source: "file:tiny.wasm", points: [admission.validate], limits: {fuel: `+strconv.Itoa(1000000+n)+`}}
`)); err != nil {
			tb.Error(err)
		}
	}
	for n := range warm {
		reload(n)
	}
	before, fds := resident(tb), descriptors(tb)
	for n := range more {
		reload(warm + n)
	}
	stop.Store(true)
	wg.Wait()
	after := resident(tb)
	tb.Logf("%d calls beside %d reloads; resident %d -> %d KiB, descriptors %d -> %d", calls.Load(), warm+more, before>>10, after>>10, fds,
		descriptors(tb))
	if after > before+24<<20 {
		tb.Errorf("resident memory grew from %d to %d KiB", before>>10, after>>10)
	}
	if n := descriptors(tb); n > fds+2 {
		tb.Errorf("open descriptors grew from %d to %d", fds, n)
	}
	if err := validate(tb, p); err == nil || !strings.Contains(err.Error(), "version "+strconv.Itoa(warm+more-1)) {
		tb.Errorf("the last version does not answer: %v", err)
	}
	if err := l.Close(tb.Context()); err != nil {
		tb.Error(err)
	}
}

func resident(tb testing.TB) int64 {
	tb.Helper()
	runtime.GC()
	runtime.GC()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		tb.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

func descriptors(tb testing.TB) int {
	tb.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	return len(list)
}

func TestAModuleThatCannotBeLoadedFailsByItsPolicy(t *testing.T) {
	dir := t.TempDir()
	// The module is asked nothing where the schema refuses: it traps at its settings.
	declaring := func(more string) []byte {
		wasm, err := assembleAs(more, "x", "(if (i32.eqz (local.get $op)) (then unreachable))")
		if err != nil {
			t.Fatal(err)
		}
		return wasm
	}
	for name, content := range map[string][]byte{
		"schema":   declaring(`"settings":true,"settingsSchema":{"required":["label"],"properties":{"label":{"type":"string"}}},`),
		"noschema": declaring(`"settings":true,"settingsSchema":{"type":"text"},`), "nosettings": declaring(`"settingsSchema":{},`),
		"garbage": []byte("hello"), "trap": tiny(t, "x", "unreachable"), "fine": tiny(t, "x", ""),
		"loop": tiny(t, "x", "(loop $l (br $l))"),
		"abi2": []byte(strings.Replace(string(tiny(t, "x", "")), `"abi":1`, `"abi":2`, 1)),
		"lost": []byte(strings.Replace(string(tiny(t, "x", "")), `"op":1`, `"op":0`, 1)),
	} {
		replaceFile(t, filepath.Join(dir, name+".wasm"), content)
	}
	for _, c := range []struct{ name, entry, status, refusal string }{
		{"missing file", `source: "file:none.wasm"`, "read the module", "no such file"},
		{"no module", `source: "file:garbage.wasm"`, "not a valid WebAssembly module", "not loaded"},
		{"another ABI", `source: "file:abi2.wasm"`, "the module speaks ABI 2, this host speaks 1", "not loaded"},
		{"a wrong manifest", `source: "file:lost.wasm"`, "op 0 passes settings", "not loaded"},
		{"another digest", `source: "file:fine.wasm", digest: "sha256:` + strings.Repeat("0", 64) + `"`, "the entry pins sha256:000", "not loaded"},
		{"settings of another type", `source: "file:schema.wasm", settings: {label: 3}`, `settings.label must be of type string`, "not loaded"},
		{"no settings", `source: "file:schema.wasm"`, "settings.label is required", "not loaded"},
		{"a schema that is none", `source: "file:noschema.wasm"`, `the plugin's settingsSchema: type: unknown type "text"`, "not loaded"},
		{"a schema of no settings", `source: "file:nosettings.wasm"`, "settingsSchema: the plugin takes no settings", "not loaded"},
		{"settings for nobody", `source: "file:fine.wasm", settings: {a: b}`, "the plugin takes none", "not loaded"},
		{"a point that it does not have", `source: "file:fine.wasm", points: [admission.mutate, admission.validate]`, "the module has no hook for admission.mutate", "not loaded"},
		{"a wrong condition", `source: "file:fine.wasm", match: {conditions: [{name: c, expression: "object.x ==="}]}`, `match.conditions "c"`, "not loaded"},
		{"a trap", `source: "file:trap.wasm"`, "", `plugin "p" failed (trap): unreachable, in function`},
		{"a loop", `source: "file:loop.wasm", limits: {fuel: 100000}`, "", "failed (fuel): it used up its fuel of 100000 units (limits.fuel)"},
	} {
		for _, policy := range []string{"Fail", "Ignore"} {
			t.Run(c.name+"/"+policy, func(t *testing.T) {
				points := "points: [admission.validate], "
				if strings.Contains(c.entry, "points:") {
					points = ""
				}
				l := newLoader(t,
					loader.Config{InProcess: true, Dir: dir, Entries: entries(t, "plugins: [{name: p, failurePolicy: "+policy+", "+points+c.entry+"}]")})
				err := l.Load(t.Context())
				if (err != nil) != (c.status != "") || err != nil && !strings.Contains(err.Error(), c.status) {
					t.Fatalf("load: %v, want %q", err, c.status)
				}
				if err != nil && !strings.Contains(err.Error(), `load plugin "p"`) {
					t.Errorf("the error does not name the plugin: %v", err)
				}
				if s := l.Status()[0]; !strings.Contains(s.Error, c.status) || s.Ready == (c.status != "") {
					t.Errorf("status %+v", s)
				}
				plugins := l.AdmissionPlugins()
				if len(plugins) == 0 {
					t.Fatal("nothing takes part at the points that the entry names")
				}
				var refused error
				for _, p := range plugins {
					if v, ok := p.(admission.Validator); ok {
						refused = v.Validate(t.Context(), admissiontest.Creating("pods", pod("a:1", nil)))
					}
				}
				if policy == "Ignore" {
					if refused != nil {
						t.Errorf("a failure that is to be ignored refuses: %v", refused)
					}
					return
				}
				if refused == nil || !strings.Contains(refused.Error(), c.refusal) || !strings.Contains(refused.Error(), "failurePolicy is Fail") {
					t.Errorf("refusal %v, want %q in it", refused, c.refusal)
				}
			})
		}
	}
}
