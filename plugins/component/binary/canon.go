// SPDX-License-Identifier: Apache-2.0

package binary

import (
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/component/bytereader"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

// asynchronous are the built-ins of asynchronous components, by their code.
var asynchronous = map[byte]string{
	0x05: "task.cancel", 0x06: "subtask.cancel", 0x09: "task.return", 0x0a: "context.get", 0x0b: "context.set", 0x0c: "thread.yield",
	0x0d: "subtask.drop", 0x0e: "stream.new", 0x0f: "stream.read", 0x10: "stream.write", 0x11: "stream.cancel-read",
	0x12: "stream.cancel-write",
	0x13: "stream.drop-readable", 0x14: "stream.drop-writable", 0x15: "future.new", 0x16: "future.read", 0x17: "future.write",
	0x18: "future.cancel-read",
	0x19: "future.cancel-write", 0x1a: "future.drop-readable", 0x1b: "future.drop-writable", 0x1c: "error-context.new",
	0x1d: "error-context.debug-message",
	0x1e: "error-context.drop", 0x1f: "waitable-set.new", 0x20: "waitable-set.wait", 0x21: "waitable-set.poll", 0x22: "waitable-set.drop",
	0x23: "waitable.join",
	0x24: "backpressure.inc", 0x25: "backpressure.dec", 0x26: "thread.index", 0x27: "thread.new-indirect", 0x28: "thread.resume-later",
	0x29: "thread.suspend",
	0x2a: "thread.suspend-then-resume", 0x2b: "thread.yield-then-resume", 0x2c: "thread.suspend-then-promote",
	0x2d: "thread.yield-then-promote",
	0x40: "thread.spawn-ref", 0x41: "thread.spawn-indirect", 0x42: "thread.available-parallelism",
}

func (s *scope) readCanon(r *bytereader.Reader) error {
	switch b := r.Byte(); b {
	case 0:
		return s.readLift(r)
	case 1:
		return s.readLower(r)
	case 2, 3, 4:
		return s.readBuiltin(r, ResourceOp(b-2))
	default:
		if name, ok := asynchronous[b]; ok {
			return fmt.Errorf("the asynchronous built-in %s is not supported: %s", name, howSync)
		}
		if r.Err == nil {
			r.Invalid(b, "canonical function")
		}
		return r.Err
	}
}

// readOptions reads the options of a lifted or lowered function.
func (s *scope) readOptions(r *bytereader.Reader) (o Options, err error) {
	encoding := ""
	once := func(name string, p **uint32) {
		i := r.U32()
		if *p != nil && err == nil {
			err = fmt.Errorf("canonical option `%s` is specified more than once", name)
		}
		*p = &i
	}
	for n := r.Count("canonical options", 16); n > 0 && r.Err == nil && err == nil; n-- {
		switch b := r.Byte(); b {
		case 0, 1, 2:
			name := [...]string{"utf8", "utf16", "latin1-utf16"}[b]
			if encoding != "" {
				return o, fmt.Errorf("canonical encoding option `%s` conflicts with option `%s`", encoding, name)
			}
			encoding, o.Encoding = name, Encoding(b)
		case 3:
			once("memory", &o.Memory)
		case 4:
			once("realloc", &o.Realloc)
		case 5:
			once("post-return", &o.PostReturn)
		case 6, 7:
			return o, fmt.Errorf("the canonical options async and callback are not supported: %s", howSync)
		default:
			if r.Err == nil {
				r.Invalid(b, "canonical option")
			}
		}
	}
	if r.Err != nil {
		return o, r.Err
	}
	if err != nil {
		return o, err
	}
	return o, s.checkOptions(&o)
}

var reallocType = &ctype.CoreFunc{Params: []ctype.Core{ctype.I32, ctype.I32, ctype.I32, ctype.I32}, Results: []ctype.Core{ctype.I32}}

func (s *scope) checkOptions(o *Options) error {
	if o.Memory != nil {
		m, err := bytereader.Get(s.coreValues[ctype.CoreMemories], *o.Memory, "memory")
		if err != nil {
			return err
		}
		if m.Wide || m.Shared {
			return fmt.Errorf("type mismatch for option `memory`: memories of 64 bits and shared ones are not supported")
		}
	}
	if o.Realloc == nil {
		return nil
	}
	f, err := bytereader.Get(s.coreFuncs, *o.Realloc, "core function")
	if err != nil {
		return err
	}
	if !f.Equal(reallocType) {
		return fmt.Errorf("canonical option `realloc` uses a core function with an incorrect signature: %s", f)
	}
	if o.Memory == nil {
		return fmt.Errorf("canonical option `realloc` requires `memory` to also be specified")
	}
	return nil
}

// requireMemory asks for the options that types need: who reads strings and lists from memory needs it,
// who writes them needs room as well.
func (o *Options) require(memory, realloc bool) error {
	if (memory || realloc) && o.Memory == nil {
		return fmt.Errorf("canonical option `memory` is required")
	}
	if realloc && o.Realloc == nil {
		return fmt.Errorf("canonical option `realloc` is required")
	}
	return nil
}

// spilled is the tuple that parameters are in memory.
func (s *scope) spilled(f *ctype.Func, spill bool) (*ctype.Type, error) {
	if !spill {
		return nil, nil
	}
	t := &ctype.Type{Kind: ctype.Tuple}
	for _, p := range f.Params {
		t.Fields = append(t.Fields, ctype.Field{Type: p.Type})
	}
	return s.set.Intern(t)
}

func (s *scope) readLift(r *bytereader.Reader) error {
	r.Expect(0, "canonical function lift")
	d := &Lift{Func: r.U32()}
	var err error
	if d.Options, err = s.readOptions(r); err != nil {
		return err
	}
	t := r.U32()
	if r.Err != nil {
		return r.Err
	}
	if d.Type, err = s.funcType(t); err != nil {
		return err
	}
	if d.Type.Async {
		return fmt.Errorf("asynchronous functions are not supported: %s", howSync)
	}
	f, err := bytereader.Get(s.coreFuncs, d.Func, "core function")
	if err != nil {
		return err
	}
	flat := d.Type.Flat(false)
	want := flat.Core
	if err := lowered(f, want); err != nil {
		return err
	}
	d.Core = want
	if err := d.Options.require(flat.Memory, flat.Realloc); err != nil {
		return err
	}
	if p := d.Options.PostReturn; p != nil {
		g, err := bytereader.Get(s.coreFuncs, *p, "core function")
		if err != nil {
			return err
		}
		if !g.Equal(&ctype.CoreFunc{Params: want.Results}) {
			return fmt.Errorf("canonical option `post-return` uses a core function with an incorrect signature: %s", g)
		}
	}
	if d.Spilled, err = s.spilled(d.Type, flat.Spilled); err != nil {
		return err
	}
	s.defs = append(s.defs, d)
	return s.add(ctype.Extern{Sort: ctype.Funcs, Func: d.Type})
}

func lowered(got, want *ctype.CoreFunc) error {
	if got.Equal(want) {
		return nil
	}
	return fmt.Errorf("type mismatch: lowered parameter types and results %s do not match the core function's %s", want, got)
}

func (s *scope) readLower(r *bytereader.Reader) error {
	r.Expect(0, "canonical function lower")
	d := &Lower{Func: r.U32()}
	var err error
	if d.Options, err = s.readOptions(r); err != nil {
		return err
	}
	if r.Err != nil {
		return r.Err
	}
	if d.Options.PostReturn != nil {
		return fmt.Errorf("canonical option `post-return` cannot be specified for lowerings")
	}
	if d.Type, err = bytereader.Get(s.funcs, d.Func, "function"); err != nil {
		return err
	}
	if d.Type.Async {
		return fmt.Errorf("asynchronous functions are not supported: %s", howSync)
	}
	flat := d.Type.Flat(true)
	d.Core = flat.Core
	if err := d.Options.require(flat.Memory, flat.Realloc); err != nil {
		return err
	}
	if d.Spilled, err = s.spilled(d.Type, flat.Spilled); err != nil {
		return err
	}
	s.defs = append(s.defs, d)
	return s.addCore(&ctype.CoreExtern{Sort: ctype.CoreFuncs, Func: d.Core})
}

func (s *scope) readBuiltin(r *bytereader.Reader, op ResourceOp) error {
	i := r.U32()
	if r.Err != nil {
		return r.Err
	}
	of, err := s.resource(i)
	if err != nil {
		return fmt.Errorf("not a resource type: %w", err)
	}
	if op != ResourceDrop && !s.local[of] {
		return fmt.Errorf("type index %d is not a local resource", i)
	}
	f := &ctype.CoreFunc{Params: []ctype.Core{ctype.I32}, Results: []ctype.Core{ctype.I32}}
	if op == ResourceDrop {
		f.Results = nil
	}
	s.defs = append(s.defs, &Builtin{Op: op, Resource: of})
	return s.addCore(&ctype.CoreExtern{Sort: ctype.CoreFuncs, Func: f})
}
