// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/host/guestframes"
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
	f.Stack, f.Function, f.Source = guestframes.Read(stack, m.inside()...)
	if i := strings.Index(f.Stack, "Go runtime stack trace:"); i >= 0 {
		f.Stack = f.Stack[:i]
	}
	return f
}

// inside are the names that the plugin's core modules give themselves.
func (m *Module) inside() []string {
	if m.component == nil {
		return []string{m.code.Name()}
	}
	var names []string
	for _, code := range m.component.codes {
		names = append(names, code.Name())
	}
	return names
}
