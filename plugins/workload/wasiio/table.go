// SPDX-License-Identifier: Apache-2.0

// Package wasiio is what the interfaces of WASI 0.2 share: tables of resources, arguments and results of functions,
// polling, and streams (wasi:io). The interfaces themselves are packages beside it, and wasip2 puts them together.
package wasiio

import (
	"context"
	"maps"
	"time"

	"github.com/wasmplane/wasmplane/plugins/component/canon"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
	"github.com/wasmplane/wasmplane/plugins/component/link"
)

// Version is that of the interfaces: 0.2.0 and all that are compatible.
const Version = "@0.2"

// Most is how many bytes are moved by one call at most.
const Most = 64 << 10

// Function is a function of the host, for the instance whose table it is.
type Function func(w *Table, c *link.Call, args []any) any

// Functions are those of wasi:io.
var Functions = Join(pollFunctions, streamFunctions)

// In are functions of an interface, by their full names.
func In(iface string, of map[string]Function) map[string]Function {
	out := map[string]Function{}
	for name, f := range of {
		out[iface+Version+"#"+name] = f
	}
	return out
}

// Join puts functions of several interfaces together.
func Join(all ...map[string]Function) map[string]Function {
	out := map[string]Function{}
	for _, m := range all {
		maps.Copy(out, m)
	}
	return out
}

// Table has what the handles of one instance stand for; link.Config.Data has the table. The zero value is ready to use.
type Table struct {
	// Data is whose who makes the instance. It ends with the table if it is an Ender.
	Data any

	resources []any // by handle; nil = free
	free      []uint32
}

// Ender is a resource that ends with its handle.
type Ender interface{ End() }

// Give is a new handle of something.
func (w *Table) Give(c *link.Call, iface, name string, v any) *canon.Handle {
	return &canon.Handle{Resource: c.Resource(iface+Version, name), Rep: w.add(v), Own: true}
}

func (w *Table) add(v any) uint32 {
	if n := len(w.free); n > 0 {
		rep := w.free[n-1]
		w.free = w.free[:n-1]
		w.resources[rep] = v
		return rep
	}
	w.resources = append(w.resources, v)
	return uint32(len(w.resources) - 1)
}

// take removes something without ending it.
func (w *Table) take(rep uint32) any {
	if int(rep) >= len(w.resources) || w.resources[rep] == nil {
		return nil
	}
	v := w.resources[rep]
	w.resources[rep] = nil
	w.free = append(w.free, rep)
	return v
}

// Drop ends what a handle stands for.
func (w *Table) Drop(rep uint32) { end(w.take(rep)) }

// Close ends what the instance has left open.
func (w *Table) Close() {
	for _, v := range w.resources {
		end(v)
	}
	w.resources, w.free = nil, nil
	end(w.Data)
}

func end(v any) {
	if e, ok := v.(Ender); ok {
		e.End()
	}
}

// Resource is what an argument is a handle of.
func Resource[T any](w *Table, args []any, i int) T {
	h := link.Arg[*canon.Handle](args, i)
	if int(h.Rep) < len(w.resources) {
		if v, ok := w.resources[h.Rep].(T); ok {
			return v
		}
	}
	canon.Fail("it passes a handle of something else")
	panic("not reached")
}

// Owned is what an argument hands over: its handle ends.
func Owned[T any](w *Table, args []any, i int) T {
	v := Resource[T](w, args, i)
	w.take(link.Arg[*canon.Handle](args, i).Rep)
	return v
}

// Optional is the value of an argument that is an option.
func Optional(args []any, i int) (v any, ok bool) {
	o := link.Arg[canon.Variant](args, i)
	return o.Value, o.Case == 1
}

// Some is an option.
func Some[T any](v T, ok bool) canon.Variant {
	if !ok {
		return canon.None()
	}
	return canon.Some(v)
}

// Enum is a case without a value.
func Enum(n uint32) canon.Variant { return canon.Variant{Case: n} }

// OK is a function that succeeds and does nothing.
func OK(*Table, *link.Call, []any) any { return canon.OK(nil) }

// Constant is a function that always answers the same.
func Constant(v any) Function { return func(*Table, *link.Call, []any) any { return v } }

// Export finds a function that a component exports in an interface of a compatible version, given without one.
func Export(p *link.Program, iface, name string) *link.Func {
	for i := range p.Type().Exports {
		e := &p.Type().Exports[i]
		if e.Instance != nil && ctype.Compatible(e.Name) == iface+Version {
			return p.Func(e.Name, name)
		}
	}
	return nil
}

// Interrupted ends a component whose process, or whose request, has ended.
func Interrupted(ctx context.Context) {
	canon.Fail("it was ended: %v", context.Cause(ctx))
}

// Duration is one of WASI's, which may be longer than Go's.
func Duration(ns uint64) time.Duration { return time.Duration(min(ns, 1<<62)) }

// Datetime is the record of wasi:clocks/wall-clock.
func Datetime(t time.Time) []any { return []any{uint64(t.Unix()), uint32(t.Nanosecond())} }

// MostDial bounds the making of a connection.
const MostDial = 2 * time.Minute
