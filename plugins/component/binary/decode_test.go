// SPDX-License-Identifier: Apache-2.0

package binary_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	ct "github.com/wasmplane/wasmplane/plugins/component/componenttest"
)

const counter = `(module
	(memory (export "memory") 1)
	(func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
	(func (export "one") (result i32) (i32.const 1))
	(func (export "take") (param i32 i32)))`

// withCore is a component with an instance of a core module.
func withCore() (c *ct.Component, instance int) {
	c = ct.New()
	return c, c.Instantiate(c.Core(counter))
}

// nestedTypes is a chain of lists of lists.
func nestedTypes(n int) []byte {
	c := ct.New()
	t := ct.U8
	for range n {
		t = c.List(t)
	}
	return c.Bytes()
}

func nestedComponents(n int) []byte {
	c := ct.New()
	for range n {
		outer := ct.New()
		outer.Add(c)
		c = outer
	}
	return c.Bytes()
}

// doubled is a chain of types that each name the one before twice.
func doubled(n int, part func(c *ct.Component, t ct.Type) ct.Type) []byte {
	c := ct.New()
	t := ct.U8
	for range n {
		t = part(c, t)
	}
	return c.Bytes()
}

// TestWhatIsWrongIsRefusedByName: hostile and broken components, with what the error has to say.
func TestWhatIsWrongIsRefusedByName(t *testing.T) {
	for name, c := range map[string]struct {
		wasm []byte
		want string
	}{
		"nothing":                    {nil, "magic header"},
		"text":                       {[]byte("(component)"), "magic header"},
		"a core module":              {[]byte("\x00asm\x01\x00\x00\x00"), "this is a core module"},
		"a newer version":            {[]byte("\x00asm\x0e\x00\x01\x00"), "unknown binary version"},
		"half a preamble":            {[]byte("\x00asm\x0d"), "end-of-file"},
		"an unknown section":         {raw(13), "malformed section id"},
		"a section that ends late":   {append([]byte(ct.Preamble), 7, 100, 1), "end-of-file"},
		"a count of four billion":    {raw(7, 0xff, 0xff, 0xff, 0xff, 0x0f), "end-of-file"},
		"bytes that are left":        {raw(7, 0, 1), "bytes are left"},
		"values":                     {raw(12, 0), "values are not supported"},
		"a start function":           {raw(9, 0), "values are not supported"},
		"ten thousand nested types":  {nestedTypes(10_000), "nested deeper than 100"},
		"nested components":          {nestedComponents(40), "nested deeper than 32"},
		"types that double in size":  {doubled(40, func(c *ct.Component, t ct.Type) ct.Type { return c.Tuple(t, t) }), "maximum byte size"},
		"a name of 5,000 bytes":      {raw(10, ct.Join(1, byte(0), strings.Repeat("a", 5000), byte(1), 0)...), "5000 bytes: at most 4096"},
		"a name that is no UTF-8":    {raw(10, ct.Join(1, byte(0), "\xff", byte(1), 0)...), "malformed UTF-8"},
		"a name with two cases":      {imports("aB"), "not in kebab case"},
		"the same name twice":        {imports("a-b", "A-B"), "conflicts with previous name"},
		"a type that is not there":   {raw(7, ct.Join(1, byte(0x70), ct.Ref(7))...), "type index out of bounds"},
		"an asynchronous built-in":   {raw(8, 1, 0x1f), "waitable-set.new is not supported: build the component for WASI 0.2, without asynchronous functions (componentize-qjs: --sync"},
		"a stream":                   {raw(7, 1, 0x66, 0), "streams and futures are not supported: build"},
		"an asynchronous function":   {raw(8, append([]byte{1, 0, 0}, ct.Join(0, 1, byte(6), 0)...)...), "async and callback are not supported"},
		"an unknown built-in":        {raw(8, 1, 0x7f), "canonical function"},
		"a record without fields":    {raw(7, 1, 0x72, 0), "at least one field"},
		"flags of 33 labels":         {raw(7, ct.Join(1, byte(0x6e), 33, labels(33))...), "more than 32 flags"},
		"a handle to no resource":    {raw(7, ct.Join(1, byte(0x69), 0)...), "type index out of bounds"},
		"an alias out of everything": {raw(6, 1, 3, 2, 1, 0), "invalid outer alias count"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := binary.Decode(c.wasm)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func raw(id byte, content ...byte) []byte {
	c := ct.New()
	c.Raw(id, content)
	return c.Bytes()
}

func imports(names ...string) []byte {
	c := ct.New()
	f := c.FuncType("")
	for _, n := range names {
		c.ImportFunc(n, f)
	}
	return c.Bytes()
}

func labels(n int) []byte {
	var out []byte
	for i := range n {
		out = append(out, ct.Join("l"+strings.Repeat("x", i))...)
	}
	return out
}

// TestTypesThatDoubleAreCheap: a chain of types whose tree would have 2^90 nodes is decoded, and
// compared, in no time, as equal types are one.
func TestTypesThatDoubleAreCheap(t *testing.T) {
	chain := func(c *ct.Component, t ct.Type) ct.Type { l := c.List(t); return c.Tuple(l, l) }
	if _, _, err := binary.Decode(doubled(45, chain)); err != nil {
		t.Fatal(err)
	}
}

// TestOptionsAreChecked: what a lifted function needs is asked for.
func TestOptionsAreChecked(t *testing.T) {
	for want, build := range map[string]func(c *ct.Component, in int){
		"canonical option `memory` is required": func(c *ct.Component, in int) {
			c.Lift(c.CoreFunc(in, "take"), c.FuncType("", ct.String))
		},
		"canonical option `realloc` is required": func(c *ct.Component, in int) {
			c.Lift(c.CoreFunc(in, "take"), c.FuncType("", ct.String), ct.Mem(c.Memory(in, "memory")))
		},
		"do not match the core function's": func(c *ct.Component, in int) {
			c.Lift(c.CoreFunc(in, "take"), c.FuncType("", ct.U32))
		},
		"`realloc` uses a core function with an incorrect signature": func(c *ct.Component, in int) {
			f := c.CoreFunc(in, "one")
			c.Lift(f, c.FuncType(ct.U32), ct.Mem(c.Memory(in, "memory")), ct.Realloc(f))
		},
		"`post-return` uses a core function with an incorrect signature": func(c *ct.Component, in int) {
			f := c.CoreFunc(in, "one")
			c.Lift(f, c.FuncType(ct.U32), ct.PostReturn(f))
		},
		"cannot be specified for lowerings": func(c *ct.Component, in int) {
			f := c.CoreFunc(in, "one")
			c.Lower(c.Lift(f, c.FuncType(ct.U32)), ct.PostReturn(f))
		},
		"is specified more than once": func(c *ct.Component, in int) {
			m := c.Memory(in, "memory")
			c.Lift(c.CoreFunc(in, "one"), c.FuncType(ct.U32), ct.Mem(m), ct.Mem(m))
		},
		"conflicts with option": func(c *ct.Component, in int) {
			c.Lift(c.CoreFunc(in, "one"), c.FuncType(ct.U32), ct.UTF16(), ct.Latin1())
		},
		"is not a local resource": func(c *ct.Component, _ int) {
			c.Builtin(2, c.ImportResource("thing"))
		},
		"function result cannot contain a `borrow` type": func(c *ct.Component, _ int) {
			c.FuncType(c.Borrow(c.Resource(-1)))
		},
		"wrong signature for a destructor": func(c *ct.Component, in int) {
			c.Resource(c.CoreFunc(in, "one"))
		},
		"has no export named `missing`": func(c *ct.Component, in int) { c.CoreFunc(in, "missing") },
		"not valid to be used as export": func(c *ct.Component, in int) {
			c.Export("f", ct.Func, c.Lift(c.CoreFunc(in, "one"), c.FuncType(c.Own(c.Resource(-1)))))
		},
	} {
		t.Run(want, func(t *testing.T) {
			c, in := withCore()
			build(c, in)
			if _, _, err := binary.Decode(c.Bytes()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

// TestErrorsSayWhere: section, item and byte.
func TestErrorsSayWhere(t *testing.T) {
	inner := ct.New()
	inner.List(ct.U8)
	inner.List(ct.Ref(9))
	c := ct.New()
	c.Add(ct.New())
	c.Add(inner)
	_, _, err := binary.Decode(c.Bytes())
	for _, want := range []string{"component 1", "type 0", "unknown type 9", "(at byte 0x"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v says nothing of %q", err, want)
		}
	}
}

// TestResourceTypesAreGenerative: two instances of one component have different resource types.
func TestResourceTypesAreGenerative(t *testing.T) {
	maker := ct.New()
	maker.Export("thing", ct.TypeSort, maker.Resource(-1))

	user := ct.New()
	r := user.ImportResource("thing")
	user.ImportFunc("take", user.FuncType("", user.Own(r)))

	c := ct.New()
	m, u := c.Add(maker), c.Add(user)
	first, second := c.Make(m), c.Make(m)
	a, b := c.Alias(ct.TypeSort, first, "thing"), c.Alias(ct.TypeSort, second, "thing")
	in := c.Instantiate(c.Core(`(module (func (export "f") (param i32)))`))
	takesB := c.Lift(c.CoreFunc(in, "f"), c.FuncType("", c.Own(b)))
	good := c.Bytes()
	c.Make(u, ct.Arg{Name: "thing", Sort: ct.TypeSort, Index: a}, ct.Arg{Name: "take", Sort: ct.Func, Index: takesB})
	if _, _, err := binary.Decode(c.Bytes()); err == nil || !strings.Contains(err.Error(), "resource types are not the same") {
		t.Errorf("the handle of another instance was taken: %v", err)
	}
	if _, _, err := binary.Decode(good); err != nil {
		t.Error(err)
	}
}

// FuzzDecode: whatever the bytes are, decoding ends, without a panic.
func FuzzDecode(f *testing.F) {
	c, in := withCore()
	c.Export("f", ct.Func, c.Lift(c.CoreFunc(in, "one"), c.FuncType(ct.U32)))
	f.Add(c.Bytes())
	f.Add(nestedTypes(20))
	f.Add(nestedComponents(3))
	f.Add(imports("a", "b"))
	f.Fuzz(func(t *testing.T, wasm []byte) {
		if len(wasm) > 1<<14 {
			return
		}
		if got, _, err := binary.Decode(wasm); err == nil && got.Type == nil {
			t.Error("a component without a type")
		}
		if binary.Is(wasm) && !bytes.HasPrefix(wasm, []byte("\x00asm")) {
			t.Error("no WebAssembly is taken for a component")
		}
	})
}

// TestWorkIsBounded: a few hundred bytes that ask for any amount of time or memory.
func TestWorkIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		wasm func() []byte
		want string
	}{
		// Each instance type exports the one before twice: 2^60 exports.
		"instances that double": {func() []byte {
			c := ct.New()
			inner := &ct.InstanceType{}
			inner.Func("f", "")
			last := c.InstanceType(inner)
			for range 60 {
				outer := &ct.InstanceType{}
				at := outer.Outer(1, last)
				outer.Instance("a", at)
				outer.Instance("b", at)
				last = c.InstanceType(outer)
			}
			return c.Bytes()
		}, "an instance with more than 65536 exports"},
		"a million members": {func() []byte {
			c := ct.New()
			for i := range 1000 {
				members := ct.Join(byte(0x6f), 999)
				for j := range 999 {
					members = append(members, byte(ct.U8[0]-byte((i>>j)&1)))
				}
				c.Type(members)
			}
			return c.Bytes()
		}, "more than 262144 fields"},
		// Each function names a type of a thousand parts, which has to be looked through for each.
		"functions that name large types": {func() []byte {
			c := ct.New()
			var parts []ct.Type
			for range 990 {
				parts = append(parts, c.List(ct.Ref(c.Type(byte(0x70), ct.U8))))
			}
			f := c.FuncType("", c.Tuple(parts...))
			for i := range 3000 {
				c.ImportFunc("f"+strings.Repeat("a", i%60)+"-x"+strings.Repeat("b", i/60), f)
			}
			return c.Bytes()
		}, "steps to compare"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := binary.Decode(c.wasm())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
