// SPDX-License-Identifier: Apache-2.0

package adapt_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/wasmplane/wasmplane/plugins/component/adapt"
	component "github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/component/canon"
	ct "github.com/wasmplane/wasmplane/plugins/component/componenttest"
	"github.com/wasmplane/wasmplane/plugins/component/encode"
	"github.com/wasmplane/wasmplane/plugins/component/link"
	"github.com/wasmplane/wasmplane/plugins/component/wasi"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// host gives WASI 0.2, with arguments and an environment, and remembers what was done. Its time passes where it is waited for.
type host struct {
	printed  strings.Builder
	waited   []uint64
	exited   *bool
	answers  map[string]any       // of functions that answer something else
	failure  func(*link.Call) any // of a write
	dropped  []string
	moment   uint64
	openings int
}

var errExit = errors.New("exited")

func (h *host) WASI() wasi.Services { return h }
func (h *host) Print(text string)   { h.printed.WriteString(text) }
func (h *host) Now() time.Time      { return time.Unix(1704067200, 42).UTC() }
func (h *host) Random(b []byte)     { copy(b, bytes.Repeat([]byte{7}, len(b))) }
func (h *host) Exit(ok bool)        { h.exited = &ok; panic(errExit) }

func (h *host) Func(iface, name string) link.HostFunc {
	if answer, there := h.answers[name]; there {
		return func(*link.Call, []any) any { return answer }
	}
	given := wasi.Func(iface, name)
	return func(c *link.Call, args []any) any {
		switch name {
		case "now":
			if strings.Contains(iface, "monotonic") {
				return h.moment
			}
		case "subscribe-duration":
			d, _ := args[0].(uint64)
			h.waited = append(h.waited, d)
			h.moment += d
		case "get-stdout", "get-stderr":
			h.openings++
		case "[method]output-stream.blocking-write-and-flush":
			if h.failure != nil {
				return h.failure(c)
			}
		}
		return given(c, args)
	}
}

func (h *host) Drop(_ *link.Call, _, resource string, _ uint32) {
	h.dropped = append(h.dropped, resource)
}

// functions are those of WASI 0.1, as the engine's own implementation has them.
func functions(t *testing.T, r wazero.Runtime) map[string]api.FunctionDefinition {
	t.Helper()
	m, err := wasi_snapshot_preview1.NewBuilder(r).Compile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m.ExportedFunctions()
}

// guest is a component of a module that imports functions of WASI 0.1, and exports each.
type guest struct {
	t  *testing.T
	in *link.Instance
	p  *link.Program
	b  []byte
}

func newGuest(t *testing.T, h *host, names ...string) *guest {
	t.Helper()
	r := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter())
	t.Cleanup(func() { _ = r.Close(context.WithoutCancel(t.Context())) })
	all := functions(t, r)
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(all))
	}
	w := &ct.World{}
	var imports, fields strings.Builder
	types := map[api.ValueType]string{api.ValueTypeI32: "i32", api.ValueTypeI64: "i64"}
	lifted := map[api.ValueType]ct.Type{api.ValueTypeI32: ct.U32, api.ValueTypeI64: ct.U64}
	for _, name := range names {
		f := all[name]
		var signature, gets string
		var params []ct.Type
		for i, p := range f.ParamTypes() {
			signature += " (param " + types[p] + ")"
			gets += fmt.Sprintf(" (local.get %d)", i)
			params = append(params, lifted[p])
		}
		var result ct.Type
		for _, p := range f.ResultTypes() {
			signature += " (result " + types[p] + ")"
			result = lifted[p]
		}
		exported := strings.ReplaceAll(name, "_", "-")
		fmt.Fprintf(&imports, "(import %q %q (func $%s%s))\n", adapt.Preview1Name, name, name, signature)
		fmt.Fprintf(&fields, "(func (export %q)%s (call $%s%s))\n", exported, signature, name, gets)
		w.Export(exported, ct.Func, w.FuncType(result, params...))
	}
	w.Export("peek", ct.Func, w.FuncType(ct.U64, ct.U32))
	w.Export("poke", ct.Func, w.FuncType("", ct.U32, ct.U64))
	module, err := wat.Assemble("(module " + imports.String() + `(memory (export "memory") 1)` + fields.String() + `
		(func (export "peek") (param i32) (result i64) (i64.load align=1 (local.get 0)))
		(func (export "poke") (param i32) (param i64) (i64.store align=1 (local.get 0) (local.get 1))))`)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := adapt.Memory()
	if err != nil {
		t.Fatal(err)
	}
	preview1, is, err := adapt.Preview1(module)
	if err != nil || !is {
		t.Fatal(is, err)
	}
	g := &guest{t: t}
	if g.b, err = encode.Component(module, w.Encode("w", 0), memory, preview1); err != nil {
		t.Fatal(err)
	}
	g.start(r, h)
	return g
}

func (g *guest) start(r wazero.Runtime, h *host) {
	g.t.Helper()
	c, _, err := component.Decode(g.b)
	if err != nil {
		g.t.Fatal(err)
	}
	if g.p, err = link.Plan(c); err != nil {
		g.t.Fatal(err)
	}
	modules, err := g.p.Modules()
	if err != nil {
		g.t.Fatal(err)
	}
	var compiled []wazero.CompiledModule
	for _, m := range modules {
		code, err := r.CompileModule(g.t.Context(), m)
		if err != nil {
			g.t.Fatal(err)
		}
		compiled = append(compiled, code)
	}
	l, err := link.Link(g.t.Context(), r, g.p, compiled, h)
	if err != nil {
		g.t.Fatal(err)
	}
	if g.in, err = l.Instantiate(g.t.Context(), link.Config{Data: h}); err != nil {
		g.t.Fatal(err)
	}
}

// call calls a function with numbers, and returns its error number.
func (g *guest) call(name string, args ...any) any {
	g.t.Helper()
	v, err := g.in.Call(g.t.Context(), g.p.Func("", strings.ReplaceAll(name, "_", "-")), args...)
	if err != nil {
		g.t.Fatal(name, err)
	}
	return v
}

// want calls a function, which has to answer an error number.
func (g *guest) want(errno uint32, name string, args ...any) {
	g.t.Helper()
	if v := g.call(name, args...); v != errno {
		g.t.Errorf("%s %v answers %v, want %d", name, args, v, errno)
	}
}

func (g *guest) peek(at uint32) uint64 {
	g.t.Helper()
	v, _ := g.call("peek", at).(uint64)
	return v
}

func (g *guest) read(at, n uint32) string {
	g.t.Helper()
	var out []byte
	for i := uint32(0); i < n; i += 8 {
		out = binary.LittleEndian.AppendUint64(out, g.peek(at+i))
	}
	return string(out[:n])
}

func (g *guest) write(at uint32, text string) {
	g.t.Helper()
	b := append([]byte(text), make([]byte, 8)...)
	for i := 0; i < len(text); i += 8 {
		g.call("poke", at+uint32(i), binary.LittleEndian.Uint64(b[i:]))
	}
}

const (
	u0   = uint32(0)
	long = uint64(0)
)

// TestEveryFunctionIsThere: with the type that it has, and those without a file or socket answer that there is none.
func TestEveryFunctionIsThere(t *testing.T) {
	g := newGuest(t, &host{})
	r := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter())
	t.Cleanup(func() { _ = r.Close(context.WithoutCancel(t.Context())) })
	given := []string{
		"args_get", "args_sizes_get", "environ_get", "environ_sizes_get", "clock_res_get", "clock_time_get", "random_get", "poll_oneoff",
		"proc_exit", "proc_raise", "sched_yield",
	}
	n := 0
	for name, f := range functions(t, r) {
		if slices.Contains(given, name) {
			continue
		}
		args := []any{uint32(3)}
		for _, p := range f.ParamTypes()[1:] {
			args = append(args, map[api.ValueType]any{api.ValueTypeI32: u0, api.ValueTypeI64: long}[p])
		}
		g.want(8, name, args...)
		n++
	}
	if n != 35 {
		t.Errorf("%d functions were called", n)
	}
	g.want(0, "sched_yield")
	g.want(52, "proc_raise", uint32(6))
}

// TestOnlyWhatIsCalledIsImported: an adapter asks for the interfaces of what the module calls.
func TestOnlyWhatIsCalledIsImported(t *testing.T) {
	for function, want := range map[string][]string{
		"sched_yield":       nil,
		"fd_close":          nil,
		"fd_prestat_get":    nil,
		"args_get":          {"wasi:cli/environment@0.2.0"},
		"random_get":        {"wasi:random/random@0.2.0"},
		"clock_time_get":    {"wasi:clocks/monotonic-clock@0.2.0", "wasi:clocks/wall-clock@0.2.0"},
		"proc_exit":         {"wasi:cli/exit@0.2.0"},
		"fd_write":          {"wasi:io/error@0.2.0", "wasi:io/streams@0.2.0", "wasi:cli/stdout@0.2.0", "wasi:cli/stderr@0.2.0"},
		"poll_oneoff":       {"wasi:io/poll@0.2.0", "wasi:clocks/monotonic-clock@0.2.0", "wasi:clocks/wall-clock@0.2.0"},
		"environ_get":       {"wasi:cli/environment@0.2.0"},
		"clock_res_get":     {"wasi:clocks/monotonic-clock@0.2.0", "wasi:clocks/wall-clock@0.2.0"},
		"args_sizes_get":    {"wasi:cli/environment@0.2.0"},
		"fd_fdstat_get":     nil,
		"path_open":         nil,
		"sock_accept":       nil,
		"fd_read":           nil,
		"environ_sizes_get": {"wasi:cli/environment@0.2.0"},
	} {
		c, _, err := component.Decode(newGuest(t, &host{}, function).b)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, i := range c.Type.Imports {
			names = append(names, i.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s: it imports %q, want %q", function, names, want)
		}
	}
}

// TestWriting: what is written in pieces reaches the host in one, up to 4 KiB; the streams are taken once.
func TestWriting(t *testing.T) {
	h := &host{}
	g := newGuest(t, h, "fd_write", "fd_fdstat_get")
	g.write(256, "hello, world")
	vectors := func(pairs ...uint32) {
		for i := 0; i < len(pairs); i += 2 {
			g.call("poke", uint32(4*i), uint64(pairs[i])|uint64(pairs[i+1])<<32)
		}
	}
	vectors(256, 5, 0, 0, 261, 7)
	for _, fd := range []uint32{1, 2, 1} {
		g.want(0, "fd_write", fd, u0, uint32(3), uint32(128))
	}
	if n := g.peek(128); n != 12 || h.printed.String() != strings.Repeat("hello, world", 3) || h.openings != 2 {
		t.Errorf("%d bytes: %q, %d streams", n, h.printed.String(), h.openings)
	}
	h.printed.Reset()
	vectors(0, 10_000, 256, 5)
	g.want(0, "fd_write", uint32(1), u0, uint32(2), uint32(20_000))
	if n := g.peek(20_000); n != 10_005 || h.printed.Len() != 10_005 || !strings.HasSuffix(h.printed.String(), "hello") {
		t.Errorf("%d bytes, %d were printed", n, h.printed.Len())
	}
	g.want(0, "fd_write", uint32(1), u0, u0, uint32(128)) // nothing
	for _, fd := range []uint32{0, 3, 1 << 31} {
		g.want(8, "fd_write", fd, u0, uint32(1), uint32(128))
	}
	g.want(28, "fd_write", uint32(1), u0, uint32(1025), uint32(128))
	g.want(0, "fd_fdstat_get", uint32(2), uint32(128))
	if kind, rights := g.peek(128), g.peek(136); kind != 2 || rights != 64 {
		t.Errorf("descriptor 2 is of kind %d with rights %d", kind, rights)
	}
	g.want(8, "fd_fdstat_get", uint32(3), uint32(128))
}

// TestAStreamThatFails: the number says whether it is closed or broken, and the error is given back.
func TestAStreamThatFails(t *testing.T) {
	for errno, failure := range map[uint32]func(c *link.Call) any{
		64: func(*link.Call) any { return canon.Error(canon.Variant{Case: 1}) },
		29: func(c *link.Call) any {
			e := &canon.Handle{Resource: c.Resource("wasi:io/error@0.2.0", "error"), Own: true}
			return canon.Error(canon.Variant{Case: 0, Value: e})
		},
	} {
		h := &host{failure: failure}
		g := newGuest(t, h, "fd_write")
		g.call("poke", u0, uint64(256)|5<<32)
		g.want(errno, "fd_write", uint32(1), u0, uint32(1), uint32(128))
		if errno == 29 && !slices.Equal(h.dropped, []string{"error"}) {
			t.Errorf("dropped: %q", h.dropped)
		}
	}
}

// TestArgumentsAndEnvironment are those of the host, as C programs expect them.
func TestArgumentsAndEnvironment(t *testing.T) {
	h := &host{answers: map[string]any{
		"get-arguments":   []any{"plugin", "", "--verbose"},
		"get-environment": []any{[]any{"HOME", "/root"}, []any{"EMPTY", ""}},
	}}
	g := newGuest(t, h, "args_get", "args_sizes_get", "environ_get", "environ_sizes_get")
	for _, c := range []struct {
		name  string
		count uint64
		want  string
		at    []uint32
	}{
		{"args", 3, "plugin\x00\x00--verbose\x00", []uint32{0, 7, 8}},
		{"environ", 2, "HOME=/root\x00EMPTY=\x00", []uint32{0, 11}},
	} {
		g.want(0, c.name+"_sizes_get", u0, uint32(8))
		if n, bytes := g.peek(0), g.peek(8); n != c.count || bytes != uint64(len(c.want)) {
			t.Errorf("%s: %d of %d bytes", c.name, n, bytes)
		}
		g.want(0, c.name+"_get", uint32(64), uint32(301))
		if got := g.read(301, uint32(len(c.want))); got != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
		for i, at := range c.at {
			if got := uint32(g.peek(uint32(64 + 4*i))); got != 301+at {
				t.Errorf("%s: item %d is at %d", c.name, i, got)
			}
		}
	}
	h.answers = nil
	empty := newGuest(t, h, "args_get", "args_sizes_get")
	empty.want(0, "args_sizes_get", u0, uint32(8))
	if n, bytes := empty.peek(0), empty.peek(8); n != 0 || bytes != 0 {
		t.Errorf("%d of %d bytes where there are none", n, bytes)
	}
}

// TestClocksAndRandom are the host's.
func TestClocksAndRandom(t *testing.T) {
	g := newGuest(t, &host{moment: 99}, "clock_time_get", "clock_res_get", "random_get")
	g.want(0, "clock_time_get", u0, long, uint32(8))
	g.want(0, "clock_time_get", uint32(1), long, uint32(16))
	g.want(58, "clock_time_get", uint32(2), long, uint32(16))
	g.want(0, "clock_res_get", u0, uint32(24))
	g.want(0, "clock_res_get", uint32(1), uint32(32))
	g.want(58, "clock_res_get", uint32(3), uint32(32))
	for at, want := range map[uint32]uint64{8: 1704067200_000_000_042, 16: 99, 24: 1, 32: 1} {
		if v := g.peek(at); v != want {
			t.Errorf("at %d stands %d, want %d", at, v, want)
		}
	}
	g.want(0, "random_get", uint32(100), uint32(10_001))
	if got := g.read(96, 10_016); got != "\x00\x00\x00\x00"+strings.Repeat("\x07", 10_001)+strings.Repeat("\x00", 11) {
		t.Error("random numbers are not where they were wanted")
	}
}

// TestPolling: the first of several clocks is waited for, files are there at once, and what cannot be waited for says so.
func TestPolling(t *testing.T) {
	h := &host{moment: 1000}
	g := newGuest(t, h, "poll_oneoff")
	clock := func(i uint32, id uint32, timeout, absolute uint64) {
		g.call("poke", 48*i, uint64(70+i))
		g.call("poke", 48*i+8, long)
		g.call("poke", 48*i+16, uint64(id))
		g.call("poke", 48*i+24, timeout)
		g.call("poke", 48*i+40, absolute)
	}
	file := func(i uint32, kind, fd uint64) {
		g.call("poke", 48*i, uint64(70+i))
		g.call("poke", 48*i+8, kind)
		g.call("poke", 48*i+16, fd)
	}
	events := func(want ...[3]uint64) {
		t.Helper()
		if n := g.peek(4000); n != uint64(len(want)) {
			t.Fatalf("%d events, want %d", n, len(want))
		}
		for i, w := range want {
			head := g.peek(uint32(2048 + 32*i + 8))
			if got := [3]uint64{g.peek(uint32(2048 + 32*i)), head & 0xffff, head >> 16 & 0xff}; got != w {
				t.Errorf("event %d is %v, want %v", i, got, w)
			}
		}
	}
	poll := func(n uint32) {
		t.Helper()
		h.waited = nil
		g.want(0, "poll_oneoff", u0, uint32(2048), n, uint32(4000))
	}
	clock(0, 1, 500, 0)
	clock(1, 1, 1300, 1) // in 300
	clock(2, 0, 1704067200_000_000_042+300, 1)
	poll(3)
	events([3]uint64{71, 0, 0}, [3]uint64{72, 0, 0})
	if !slices.Equal(h.waited, []uint64{300}) || !slices.Equal(h.dropped, []string{"pollable"}) {
		t.Errorf("waited %v, dropped %q", h.waited, h.dropped)
	}
	file(1, 2, 1)
	file(2, 1, 9)
	poll(3)
	events([3]uint64{71, 0, 2}, [3]uint64{72, 8, 1})
	clock(1, 3, 5, 0)
	clock(2, 1, 2, 1) // was long ago
	poll(3)
	events([3]uint64{71, 58, 0}, [3]uint64{72, 0, 0})
	if len(h.waited) > 0 {
		t.Errorf("waited %v for what was ready", h.waited)
	}
	for _, n := range []uint32{0, 65, 1 << 31} {
		g.want(28, "poll_oneoff", u0, uint32(2048), n, uint32(4000))
	}
}

// TestExit ends the guest; WASI 0.2 knows two results.
func TestExit(t *testing.T) {
	for code, ok := range map[uint32]bool{0: true, 1: false, 77: false} {
		h := &host{}
		g := newGuest(t, h, "proc_exit")
		_, err := g.in.Call(t.Context(), g.p.Func("", "proc-exit"), code)
		if !errors.Is(err, errExit) || h.exited == nil || *h.exited != ok {
			t.Errorf("code %d: %v, %v", code, err, h.exited)
		}
	}
}

// TestBadPointersTrap, and nothing but this instance is lost.
func TestBadPointersTrap(t *testing.T) {
	for name, args := range map[string][]any{
		"fd_write":          {uint32(1), uint32(1 << 30), uint32(1), u0},
		"args_sizes_get":    {u0, uint32(65_533)},
		"clock_time_get":    {u0, long, uint32(65_529)},
		"random_get":        {uint32(60_000), uint32(6_000)},
		"poll_oneoff":       {u0, uint32(65_520), uint32(1), u0},
		"environ_sizes_get": {uint32(1<<32 - 4), u0},
	} {
		g := newGuest(t, &host{}, name)
		_, err := g.in.Call(t.Context(), g.p.Func("", strings.ReplaceAll(name, "_", "-")), args...)
		if err == nil || !strings.Contains(err.Error(), "out of bounds memory access") {
			t.Errorf("%s %v: %v", name, args, err)
		}
	}
}

// TestMemoryOfItsOwnIsBounded: an environment that is larger ends the call.
func TestMemoryOfItsOwnIsBounded(t *testing.T) {
	h := &host{answers: map[string]any{"get-arguments": []any{strings.Repeat("x", 5<<20)}}}
	g := newGuest(t, h, "args_sizes_get")
	_, err := g.in.Call(t.Context(), g.p.Func("", "args-sizes-get"), u0, uint32(8))
	if err == nil || !strings.Contains(err.Error(), "unreachable") {
		t.Errorf("got %v", err)
	}
}

// TestAModuleWithoutWASINeedsNone, and one that wants what WASI does not have is told so.
func TestAModuleWithoutWASINeedsNone(t *testing.T) {
	for text, want := range map[string]string{
		`(module)`: "",
		`(module (import "wasi_snapshot_preview1" "fd_open" (func)))`: `import "fd_open" of wasi_snapshot_preview1: WASI 0.1 has no such function`,
		`(module (import "wasi_unstable" "fd_write" (func)))`:         "",
	} {
		module, err := wat.Assemble(text)
		if err != nil {
			t.Fatal(err)
		}
		_, is, err := adapt.Preview1(module)
		if got := fmt.Sprint(err); want == "" && (is || err != nil) || want != "" && got != want {
			t.Errorf("%s: %t, %v", text, is, err)
		}
	}
	if _, _, err := adapt.Preview1([]byte("module")); err == nil {
		t.Error("what is no module is taken")
	}
}
