// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Kind says which of its bounds a guest ran into.
type Kind string

// The kinds of faults, as they are shown in messages and metrics.
const (
	Trap        Kind = "trap"
	Fuel        Kind = "fuel"
	Deadline    Kind = "deadline"
	Canceled    Kind = "canceled"
	StackDepth  Kind = "stack depth"
	OutputSize  Kind = "output size"
	HostCalls   Kind = "host calls"
	BadPointer  Kind = "bad pointer"
	Exit        Kind = "exit"
	Refused     Kind = "input refused"
	StartUp     Kind = "start-up"
	BreakerOpen Kind = "breaker open"
	Busy        Kind = "busy"
)

// Fault is a failure of a plugin, as against an answer. The failure policy
// decides what it means.
type Fault struct {
	Plugin   string
	Kind     Kind
	Detail   string // "used 5000000 units of fuel"
	Function string // guest function that was running, where it has a name
	Source   string // file and line, where the module has a line table
	Stack    string // guest's stack, innermost first
	ExitCode uint32 // where Kind is Exit
	Printed  string // what the guest said of it on stdout or stderr: the words of its panic
	Err      error
}

// Error is one sentence; Stack is not part of it.
func (f *Fault) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "plugin %q failed (%s): %s", f.Plugin, f.Kind, f.Detail)
	if f.Function != "" {
		fmt.Fprintf(&b, ", in function %s", f.Function)
	}
	if f.Source != "" {
		fmt.Fprintf(&b, " at %s", f.Source)
	}
	if f.Printed != "" {
		fmt.Fprintf(&b, "; it printed: %s", f.Printed)
	}
	return b.String()
}

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Err }

// GuestError is an error that the plugin answered with: the instance is sound.
type GuestError struct {
	Plugin  string
	Message string
}

func (e *GuestError) Error() string { return fmt.Sprintf("plugin %q: %s", e.Plugin, e.Message) }

// stop is what host functions panic with to end a guest; the engine hands it back wrapped.
type stop struct {
	kind   Kind
	detail string
	err    error
	code   uint32 // of an exit
}

func (s *stop) Error() string { return s.detail }
func (s *stop) Unwrap() error { return s.err }

// internalFrames are ours: an error points at the author's code instead.
var internalFrames = []string{"wasmplane:fuel.", "wasi_snapshot_preview1.", "wasmplane.", "env.", "wasi_unstable.", "wapc.", "host.", "kubewarden:javy/host.", "k8s.io/"}

// fault makes a Fault of what the engine returned.
func (m *Module) fault(err error) *Fault {
	f := &Fault{Plugin: m.name, Kind: Trap, Err: err}
	var s *stop
	text, stack, _ := strings.Cut(err.Error(), "\nwasm stack trace:\n")
	switch {
	case errors.As(err, &s):
		f.Kind, f.Detail, f.ExitCode = s.kind, s.detail, s.code
	case errors.Is(err, context.DeadlineExceeded):
		f.Kind, f.Detail = Deadline, err.Error()
	case errors.Is(err, context.Canceled):
		f.Kind, f.Detail = Canceled, "the request ended"
	default:
		f.Detail = strings.TrimPrefix(strings.TrimSuffix(text, " (recovered by wazero)"), "wasm error: ")
		if strings.Contains(text, "stack overflow") {
			f.Kind = StackDepth
		}
	}
	f.Stack, f.Function, f.Source = readStack(stack)
	if i := strings.Index(f.Stack, "Go runtime stack trace:"); i >= 0 {
		f.Stack = f.Stack[:i]
	}
	return f
}

// frame is one function of a guest's stack.
type frame struct{ function, source string }

// readStack finds the innermost frame that the author wrote: a panic ends in the
// toolchain's own functions, which tell nothing.
func readStack(stack string) (clean, function, source string) {
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
	return !has(f.function, "core::", "std::", "alloc::", "rust_", "__rust", "runtime.", "<core::", "<std::", "<alloc::", "memcpy", "memset", "~lib/") &&
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

var rustEscapes = strings.NewReplacer("_$LT$", "<", "$LT$", "<", "$GT$", ">", "$RF$", "&", "$u20$", " ", "$u7b$", "{", "$u7d$", "}", "LT$", "<", "..", "::")
