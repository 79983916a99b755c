// SPDX-License-Identifier: Apache-2.0

package componenttest

// World is the type of a component that is being built: a world, as generators of bindings write it into a module.
type World struct {
	n, types, insts int
	b               []byte
}

func (w *World) declare(form byte, parts ...any) {
	w.n++
	w.b = append(append(w.b, form), Join(parts...)...)
}

// Type declares a type.
func (w *World) Type(parts ...any) int {
	w.declare(1, parts...)
	return next(&w.types)
}

// FuncType declares the type of a function.
func (w *World) FuncType(result Type, params ...Type) int {
	return w.Type(funcType("p0", result, params))
}

// InstanceType declares the type of an instance.
func (w *World) InstanceType(t *InstanceType) int { return w.Type(byte(0x42), t.n, t.b) }

// ImportInstance imports an instance of an instance type.
func (w *World) ImportInstance(name string, typ int) int {
	w.declare(3, byte(0), name, byte(5), typ)
	return next(&w.insts)
}

// Alias declares what an instance exports as a type.
func (w *World) Alias(instance int, name string) int {
	w.declare(2, TypeSort, byte(0), instance, name)
	return next(&w.types)
}

// Import imports a function or an equal type.
func (w *World) Import(name string, sort byte, typ int) { w.extern(3, name, sort, typ) }

// Export exports one.
func (w *World) Export(name string, sort byte, typ int) { w.extern(4, name, sort, typ) }

func (w *World) extern(form byte, name string, sort byte, typ int) {
	if sort == TypeSort {
		w.declare(form, byte(0), name, sort, byte(0), typ)
		next(&w.types)
		return
	}
	w.declare(form, byte(0), name, sort, typ)
}

// Encode is the world under a name, as the component that stands in the section.
func (w *World) Encode(name string, strings byte) []byte {
	c := New()
	c.Raw(0, "wit-component-encoding", byte(4), strings)
	world := Join(byte(0x41), w.n, w.b)
	c.Type(byte(0x41), 2, byte(1), world, byte(4), byte(0), "test:test/"+name, Nested, 0)
	c.Raw(11, 1, byte(0), name, TypeSort, 0, byte(0))
	return c.Bytes()
}
