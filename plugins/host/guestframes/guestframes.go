// SPDX-License-Identifier: Apache-2.0

// Package guestframes reads the stack traces of guests: which function of the author's was running,
// and where it stands in the source.
package guestframes

import (
	"slices"
	"strings"

	"github.com/ianlancetaylor/demangle"
)

// internalFrames are ours: an error points at the author's code instead.
var internalFrames = []string{
	"wasmplane:fuel.", "wasi_snapshot_preview1.", "wasmplane.", "env.", "wasi_unstable.", "wapc.", "host.",
	"kubewarden:javy/host.", "k8s.io/",
}

// frame is one function of a guest's stack.
type frame struct{ function, source string }

// Read finds the innermost frame that the author wrote: a panic ends in the
// toolchain's own functions, which tell nothing. The names of the modules, of which a component has several, are
// those in their name sections, empty where they have none.
func Read(stack string, modules ...string) (clean, function, source string) {
	var lines []string
	var frames []frame
	for _, line := range strings.Split(stack, "\n") {
		line = strings.TrimPrefix(line, "\t")
		internal := slices.ContainsFunc(internalFrames, func(p string) bool { return strings.HasPrefix(line, p) })
		if line == "" || internal || strings.HasPrefix(line, "... maybe") {
			continue
		}
		if located, ok := strings.CutPrefix(line, "\t0x"); ok {
			_, at, _ := strings.Cut(located, ": ")
			if n := len(frames); n > 0 && frames[n-1].source == "" {
				frames[n-1].source = strings.TrimSuffix(at, " (inlined)")
			}
			lines = append(lines, line)
			continue
		}
		symbol, signature, _ := strings.Cut(line, "(")
		name := readable(symbol, modules)
		frames = append(frames, frame{function: name})
		lines = append(lines, name+"("+signature)
	}
	own := slices.IndexFunc(frames, frame.authored)
	if own < 0 && len(frames) > 0 {
		own = 0
	}
	if own < 0 {
		return strings.Join(lines, "\n"), "", ""
	}
	return strings.Join(lines, "\n"), frames[own].function, frames[own].source
}

// authored says whether a frame looks like the author's own code.
func (f frame) authored() bool {
	has := func(s string, prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
	}
	return !has(f.function, "core::", "std::", "alloc::", "rust_", "__rust", "runtime.", "<core::", "<std::", "<alloc::",
		"memcpy", "memset", "~lib/") &&
		!has(f.source, "/rustc/", "/usr/src/rustc", "library/", "/usr/lib/go", "/usr/local/go", "~lib/")
}

// readable is a function's name as the author wrote it: without the name of its module, which some linkers
// write into the module and the engine puts before each function, and without the encoding of Rust and C++.
// Names that no such encoding made stay as they are.
func readable(symbol string, modules []string) string {
	for _, module := range modules {
		if function, ok := strings.CutPrefix(symbol, module+"."); ok {
			return demangle.Filter(function, demangle.NoParams)
		}
	}
	return demangle.Filter(symbol, demangle.NoParams)
}
