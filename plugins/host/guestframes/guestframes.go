// SPDX-License-Identifier: Apache-2.0

// Package guestframes reads the stack traces of guests: which function of the author's was running,
// and where it stands in the source.
package guestframes

import (
	"slices"
	"strconv"
	"strings"
)

// internalFrames are ours: an error points at the author's code instead.
var internalFrames = []string{
	"wasmplane:fuel.", "wasi_snapshot_preview1.", "wasmplane.", "env.", "wasi_unstable.", "wapc.", "host.",
	"kubewarden:javy/host.", "k8s.io/",
}

// frame is one function of a guest's stack.
type frame struct{ function, source string }

// Read finds the innermost frame that the author wrote: a panic ends in the
// toolchain's own functions, which tell nothing.
func Read(stack string) (clean, function, source string) {
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
		name, signature, _ := strings.Cut(strings.TrimPrefix(line, "."), "(")
		frames = append(frames, frame{function: demangle(name)})
		lines = append(lines, demangle(name)+"("+signature)
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

// demangle reads Rust's legacy symbols, "_ZN6plugin5judge17h9d9d4f164bc8223bE";
// others stay as they are.
func demangle(symbol string) string {
	rest, ok := strings.CutPrefix(symbol, "_ZN")
	if !ok {
		return symbol
	}
	var parts []string
	for rest != "" && rest != "E" {
		digits := 0
		for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
			digits++
		}
		n, err := strconv.Atoi(rest[:digits])
		if err != nil || n > len(rest)-digits {
			return symbol
		}
		part := rest[digits : digits+n]
		rest = rest[digits+n:]
		if len(part) == 17 && part[0] == 'h' && (rest == "E" || rest == "") {
			continue // the hash
		}
		parts = append(parts, rustEscapes.Replace(strings.TrimPrefix(part, "_$")))
	}
	return strings.Join(parts, "::")
}

var rustEscapes = strings.NewReplacer("_$LT$", "<", "$LT$", "<", "$GT$", ">", "$RF$", "&", "$u20$", " ", "$u7b$", "{", "$u7d$", "}", "LT$",
	"<", "..", "::")
