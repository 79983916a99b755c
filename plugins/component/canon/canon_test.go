// SPDX-License-Identifier: Apache-2.0

package canon_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/component/canon"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

// account ends what costs too much.
type account struct{ fuel, room int64 }

func (a *account) Charge(n int64) {
	if a.fuel -= n; a.fuel < 0 {
		canon.Fail("out of fuel")
	}
}

func (a *account) Hold(n int64) {
	if a.room -= n; a.room < 0 {
		canon.Fail("out of room")
	}
}

// everything is a type that has one of each kind in it, handles of a resource type among them.
func everything(tb testing.TB, r *ctype.Resource, s *ctype.Set) *ctype.Type {
	tb.Helper()
	in := func(t ctype.Type) *ctype.Type {
		made, err := s.Intern(&t)
		if err != nil {
			tb.Fatal(err)
		}
		return made
	}
	p := s.Primitive
	option := func(t *ctype.Type) *ctype.Type {
		return in(ctype.Type{Kind: ctype.Option, Elem: t, Cases: []ctype.Case{{Name: "none"}, {Name: "some", Type: t}}})
	}
	list := func(t *ctype.Type) *ctype.Type { return in(ctype.Type{Kind: ctype.List, Elem: t}) }
	var fields []ctype.Field
	for _, t := range []*ctype.Type{
		p(ctype.Bool), p(ctype.S8), p(ctype.U16), p(ctype.S32), p(ctype.U64), p(ctype.F32), p(ctype.F64), p(ctype.Char), p(ctype.String),
		list(p(ctype.U8)), list(list(p(ctype.String))), option(option(p(ctype.U64))),
		in(ctype.Type{Kind: ctype.Enum, Cases: []ctype.Case{{Name: "a"}, {Name: "b"}, {Name: "c"}}}),
		in(ctype.Type{Kind: ctype.Result, Cases: []ctype.Case{{Name: "ok", Type: p(ctype.F64)}, {Name: "error", Type: p(ctype.String)}}}),
		in(ctype.Type{Kind: ctype.Flags, Labels: []string{"x", "y", "z"}}),
		in(ctype.Type{Kind: ctype.FixedList, Elem: p(ctype.U16), Len: 3}),
		in(ctype.Type{Kind: ctype.Own, Resource: r}),
	} {
		fields = append(fields, ctype.Field{Type: t})
	}
	return in(ctype.Type{Kind: ctype.Tuple, Fields: fields})
}

// world is a memory with what stands around it; its realloc takes what comes next, and grows nothing.
func world(memory []byte, encoding canon.Encoding, of *canon.Resource) *canon.Context {
	free := uint32(1 << 15)
	return &canon.Context{
		Bytes: func() []byte { return memory }, Encoding: encoding, Table: &canon.Table{}, Scope: &canon.Scope{}, Instance: new(int),
		Account:  &account{fuel: 1 << 22, room: 1 << 24},
		Resource: func(*ctype.Resource) *canon.Resource { return of },
		Realloc: func(_, _, align, size uint32) uint32 {
			at := (free + align - 1) &^ (align - 1)
			free = at + size
			return at
		},
	}
}

// attempt runs f. It says whether it trapped; any other panic goes on.
func attempt(f func()) (trapped bool) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case error:
			var trap *canon.Trap
			if !errors.As(r, &trap) {
				panic(r)
			}
			trapped = true
		default:
			panic(r)
		}
	}()
	f()
	return false
}

// FuzzLift: whatever a guest's memory holds, lifting from it is a value or a trap; a value that was
// lifted is lowered, and is the same when it is lifted again, in every encoding.
func FuzzLift(f *testing.F) {
	f.Add([]byte{}, uint8(0))
	f.Add([]byte("\x01\xff\x00\x00\xff\xff\xff\xff\x01\x00\x00\x00\x00\x00\x00\x00"), uint8(1))
	f.Add(make([]byte, 300), uint8(2))
	f.Fuzz(func(t *testing.T, content []byte, encoding uint8) {
		s := ctype.NewSet()
		of := &canon.Resource{Name: "thing"}
		typ := everything(t, s.NewResource("thing"), s)
		memory := make([]byte, 1<<16)
		copy(memory[8:], content)
		from := world(memory, canon.Encoding(encoding%3), of)
		from.Table.New(of, 7)
		var value any
		if attempt(func() { value = from.LiftResult([]uint64{8}, typ) }) {
			return
		}
		to := world(make([]byte, 1<<16), canon.Encoding(encoding/3%3), of)
		var again any
		if attempt(func() {
			to.LowerResult(nil, value, typ, 16)
			again = to.LiftResult([]uint64{16}, typ)
		}) {
			return // no room in a small memory, or a string that another encoding makes too long
		}
		if !reflect.DeepEqual(value, again) && !hasNaN(value) {
			t.Errorf("%v became %v", value, again)
		}
	})
}

// hasNaN says that comparing is of no use.
func hasNaN(v any) bool {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if hasNaN(e) {
				return true
			}
		}
	case canon.Variant:
		return hasNaN(v.Value)
	case float32:
		return v != v
	case float64:
		return v != v
	}
	return false
}

// TestBorrowedHandlesEndWithTheCall: one that the callee keeps is a trap, and what is lent cannot be given away.
func TestBorrowedHandlesEndWithTheCall(t *testing.T) {
	s := ctype.NewSet()
	r := s.NewResource("thing")
	of := &canon.Resource{Name: "thing"}
	intern := func(k ctype.Kind) *ctype.Type {
		made, err := s.Intern(&ctype.Type{Kind: k, Resource: r})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	borrow, own := intern(ctype.Borrow), intern(ctype.Own)
	caller, callee := world(nil, canon.UTF8, of), world(nil, canon.UTF8, of)
	i := caller.Table.New(of, 42)
	lent := caller.LiftParams([]uint64{uint64(i)}, []ctype.Param{{Type: borrow}}, nil)
	if !attempt(func() { caller.LiftParams([]uint64{uint64(i)}, []ctype.Param{{Type: own}}, nil) }) {
		t.Error("a lent handle was given away")
	}
	if !attempt(func() { caller.Table.Drop(of, i) }) {
		t.Error("a lent handle was dropped")
	}
	given := callee.LowerParams(nil, lent, []ctype.Param{{Type: borrow}}, nil)
	if !attempt(func() { callee.Scope.End() }) {
		t.Error("a borrowed handle was kept")
	}
	if rep, ended := callee.Table.Drop(of, uint32(given[0])); rep != 42 || ended {
		t.Errorf("dropping the borrowed handle gives %d, %t", rep, ended)
	}
	if attempt(func() { callee.Scope.End(); caller.Scope.End() }) {
		t.Error("the call did not end")
	}
	if rep, ended := caller.Table.Drop(of, i); rep != 42 || !ended {
		t.Errorf("dropping the owned handle gives %d, %t", rep, ended)
	}
}
