// SPDX-License-Identifier: Apache-2.0

package adapt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/component/bytejoin"
)

// version is that of WASI that is asked for: hosts take it for each later one of 0.2.
const version = "@0.2.0"

// function is one of WASI 0.2.
type function struct {
	of, name string
	core     string // its type in the adapter's text
	params   []param
	result   shape
}

type param struct {
	name string
	typ  shape
}

// wasi are the functions that adapters call, by the name that they have in the adapter's text. Those that drop a
// resource are not declared.
var wasi = map[string]function{
	"get-arguments":   {"wasi:cli/environment", "get-arguments", "(param i32)", nil, list(text)},
	"get-environment": {"wasi:cli/environment", "get-environment", "(param i32)", nil, list(tuple(text, text))},
	"exit":            {"wasi:cli/exit", "exit", "(param i32)", []param{{"status", result(nil, nil)}}, nil},
	"get-stdout":      {"wasi:cli/stdout", "get-stdout", "(result i32)", nil, own("output-stream")},
	"get-stderr":      {"wasi:cli/stderr", "get-stderr", "(result i32)", nil, own("output-stream")},
	"write": {
		"wasi:io/streams", "[method]output-stream.blocking-write-and-flush", "(param i32 i32 i32 i32)",
		[]param{{"self", borrow("output-stream")}, {"contents", list(u8)}},
		result(nil, named("stream-error")),
	},
	"drop-error":    {"wasi:io/error", "[resource-drop]error", "(param i32)", nil, nil},
	"block":         {"wasi:io/poll", "[method]pollable.block", "(param i32)", []param{{"self", borrow("pollable")}}, nil},
	"drop-pollable": {"wasi:io/poll", "[resource-drop]pollable", "(param i32)", nil, nil},
	"now":           {"wasi:clocks/monotonic-clock", "now", "(result i64)", nil, u64},
	"resolution":    {"wasi:clocks/monotonic-clock", "resolution", "(result i64)", nil, u64},
	"subscribe-duration": {
		"wasi:clocks/monotonic-clock", "subscribe-duration", "(param i64) (result i32)", []param{{"when", u64}}, own("pollable"),
	},
	"wall-now":         {"wasi:clocks/wall-clock", "now", "(param i32)", nil, named("datetime")},
	"wall-resolution":  {"wasi:clocks/wall-clock", "resolution", "(param i32)", nil, named("datetime")},
	"get-random-bytes": {"wasi:random/random", "get-random-bytes", "(param i64 i32)", []param{{"len", u64}}, list(u8)},
}

// interfaces are those of the functions: the types that they use of the ones before them, and those that they declare.
var interfaces = []struct {
	name           string
	uses, declares []string
}{
	{"wasi:io/error", nil, []string{"error"}},
	{"wasi:io/poll", nil, []string{"pollable"}},
	{"wasi:io/streams", []string{"error"}, []string{"stream-error", "output-stream"}},
	{"wasi:cli/environment", nil, nil},
	{"wasi:cli/exit", nil, nil},
	{"wasi:cli/stdout", []string{"output-stream"}, nil},
	{"wasi:cli/stderr", []string{"output-stream"}, nil},
	{"wasi:clocks/monotonic-clock", []string{"pollable"}, nil},
	{"wasi:clocks/wall-clock", nil, []string{"datetime"}},
	{"wasi:random/random", nil, nil},
}

// declared are the types that interfaces declare; nil = a resource.
var declared = map[string]shape{
	"error": nil, "pollable": nil, "output-stream": nil,
	"stream-error": variant(param{"last-operation-failed", own("error")}, param{"closed", nil}),
	"datetime":     record(param{"seconds", u64}, param{"nanoseconds", u32}),
}

// imports are the fields that import functions.
func imports(calls []string) string {
	var out strings.Builder
	for _, c := range calls {
		f := wasi[c]
		fmt.Fprintf(&out, "(import %q %q (func $%s %s))\n", f.of+version, f.name, c, f.core)
	}
	return out.String()
}

// world encodes the world that imports functions, as the section of a module in which generators of bindings write
// theirs.
func world(calls []string) []byte {
	needed := map[string]bool{} // types, and interfaces
	uses := &scope{named: map[string]int{}, asked: needed}
	for _, c := range calls {
		needed[wasi[c].of] = true
		uses.function(wasi[c])
	}
	for _, i := range slices.Backward(interfaces) {
		for _, t := range i.declares {
			needed[i.name] = needed[i.name] || needed[t]
		}
		for _, t := range i.declares {
			if needed[i.name] && declared[t] != nil {
				declared[t](uses)
			}
		}
	}
	w := &scope{named: map[string]int{}}
	for _, i := range interfaces {
		if !needed[i.name] {
			continue
		}
		t := &scope{named: map[string]int{}}
		for _, name := range i.uses {
			if !needed[name] {
				continue
			}
			t.declare(bytejoin.Join(declaresAlias, sortType, aliasOuter, 1, w.named[name]))
			t.exportType(name, bytejoin.Join(equalTo, t.next()))
		}
		for _, name := range i.declares {
			t.declareType(name)
		}
		for _, c := range calls {
			if f := wasi[c]; f.of == i.name && !strings.HasPrefix(f.name, "[resource-drop]") {
				t.function(f)
			}
		}
		w.imports(i.name+version, t, i.declares)
	}
	return w.section("wasi")
}
