// SPDX-License-Identifier: Apache-2.0

package ctype

import (
	"fmt"
	"slices"
)

// Param is a parameter of a function.
type Param struct {
	Name string
	Type *Type
}

// Func is the type of a component's function; Result is nil where it has none.
type Func struct {
	Params []Param
	Result *Type
	Async  bool
}

// Flat is a function as core code sees it (CanonicalABI.md, flatten_functype).
type Flat struct {
	Core    *CoreFunc
	Spilled bool // the parameters go by memory, as a tuple
	// Memory and Realloc say which canonical options the function needs: who reads values from memory needs
	// the memory, who writes them needs room as well.
	Memory, Realloc bool
}

// Flat is the core function that the function is lowered to, or lifted from.
func (f *Func) Flat(lower bool) Flat {
	flat := Flat{Core: &CoreFunc{}}
	c := flat.Core
	var params, result, byMemory bool
	for _, p := range f.Params {
		params = params || p.Type.Memory
		if flat.Spilled = flat.Spilled || p.Type.TooFlat || len(c.Params)+len(p.Type.Flat) > MaxFlatParams; !flat.Spilled {
			c.Params = append(c.Params, p.Type.Flat...)
		}
	}
	if flat.Spilled {
		c.Params = []Core{I32}
	}
	if f.Result != nil {
		result = f.Result.Memory
		byMemory = f.Result.TooFlat || len(f.Result.Flat) > MaxFlatResults
		switch {
		case !byMemory:
			c.Results = f.Result.Flat
		case lower:
			c.Params = append(c.Params[:len(c.Params):len(c.Params)], I32)
		default:
			c.Results = []Core{I32}
		}
	}
	flat.Memory, flat.Realloc = result || byMemory, params || flat.Spilled
	if lower {
		flat.Memory, flat.Realloc = params || flat.Spilled || byMemory, result
	}
	return flat
}

// CoreFunc is the type of a core function.
type CoreFunc struct{ Params, Results []Core }

// Equal compares core function types.
func (f *CoreFunc) Equal(o *CoreFunc) bool {
	return slices.Equal(f.Params, o.Params) && slices.Equal(f.Results, o.Results)
}

// CoreSort says what a core definition is, as the binary format numbers it.
type CoreSort byte

// The core sorts.
const (
	CoreFuncs    CoreSort = 0x00
	CoreTables   CoreSort = 0x01
	CoreMemories CoreSort = 0x02
	CoreGlobals  CoreSort = 0x03
	CoreTags     CoreSort = 0x04
	CoreTypes    CoreSort = 0x10
	CoreModules  CoreSort = 0x11
	CoreInsts    CoreSort = 0x12
)

// String names a sort.
func (s CoreSort) String() string {
	switch s {
	case CoreFuncs:
		return "func"
	case CoreTables:
		return "table"
	case CoreMemories:
		return "memory"
	case CoreGlobals:
		return "global"
	case CoreTags:
		return "tag"
	case CoreTypes:
		return "core type"
	case CoreModules:
		return "module"
	case CoreInsts:
		return "core instance"
	}
	return fmt.Sprintf("core sort 0x%x", byte(s))
}

// CoreExtern is the type of something that a core module imports or exports.
type CoreExtern struct {
	Sort     CoreSort
	Func     *CoreFunc
	Value    Core // of a global, or the elements of a table
	Mutable  bool
	Min, Max uint64 // of a table or memory
	HasMax   bool
	Shared   bool
	Wide     bool // 64 bit
}

// CoreImport is an import of a core module.
type CoreImport struct {
	Module, Name string
	Type         CoreExtern
}

// CoreExport is an export of a core module or instance.
type CoreExport struct {
	Name string
	Type CoreExtern
}

// Module is the type of a core module, or with Exports alone that of a core instance.
type Module struct {
	Imports []CoreImport
	Exports []CoreExport
	byName  map[string]int
}

// Export finds an export by name.
func (m *Module) Export(name string) *CoreExtern {
	if m.byName == nil {
		m.byName = make(map[string]int, len(m.Exports))
		for i, e := range m.Exports {
			m.byName[e.Name] = i
		}
	}
	if i, ok := m.byName[name]; ok {
		return &m.Exports[i].Type
	}
	return nil
}

// Sort says what a definition of a component is, as the binary format numbers it.
type Sort byte

// The sorts.
const (
	Core0      Sort = 0x00 // something core; of these only modules are imported and exported
	Funcs      Sort = 0x01
	Values     Sort = 0x02
	Types      Sort = 0x03
	Components Sort = 0x04
	Instances  Sort = 0x05
)

// String names a sort.
func (s Sort) String() string {
	if int(s) < len(sortNames) {
		return sortNames[s]
	}
	return fmt.Sprintf("sort 0x%x", byte(s))
}

var sortNames = [...]string{"module", "func", "value", "type", "component", "instance"}

// Extern is the type of something that a component imports or exports: the field of its sort is set.
// Of a type it is Def.
type Extern struct {
	Sort      Sort
	Module    *Module
	Func      *Func
	Def       *Def
	Component *Component
	Instance  *Instance
}

// Def is a type definition: one of its fields is set.
type Def struct {
	Value     *Type
	Resource  *Resource
	Func      *Func
	Component *Component
	Instance  *Instance
}

// what names a definition in errors.
func (d *Def) what() string {
	switch {
	case d.Value != nil:
		return d.Value.String()
	case d.Resource != nil:
		return "resource"
	case d.Func != nil:
		return "func"
	case d.Component != nil:
		return "component"
	}
	return "instance"
}

// Named is something with its name.
type Named struct {
	Name string
	Extern
}

// Instance is the type of a component's instance. Fresh are the resource types that it declares
// without saying which they are: each instance has its own.
type Instance struct {
	Exports []Named
	Fresh   []*Resource
	byName  map[string]int
	weight  int
}

// MaxWeight is the most exports of an instance, those of instances in it included: a chain of
// instances that each have the one before twice has two to the power of its length.
const MaxWeight = 1 << 16

// Weight counts them, and no further than just above MaxWeight.
func (i *Instance) Weight() int {
	if i.weight == 0 {
		i.weight = 1
		for _, e := range i.Exports {
			i.weight++
			if e.Sort == Instances {
				i.weight += e.Instance.Weight()
			}
			i.weight = min(i.weight, MaxWeight+1)
		}
	}
	return i.weight
}

// Export finds an export by name.
func (i *Instance) Export(name string) *Extern {
	return find(i.Exports, &i.byName, name)
}

func find(all []Named, byName *map[string]int, name string) *Extern {
	if *byName == nil || len(*byName) != len(all) {
		*byName = make(map[string]int, len(all))
		for i, e := range all {
			(*byName)[e.Name] = i
		}
	}
	if i, ok := (*byName)[name]; ok {
		return &all[i].Extern
	}
	return nil
}

// Component is the type of a component. Open are the resource types that its imports leave to
// whoever instantiates it, Fresh those that each instance makes anew.
type Component struct {
	Imports []Named
	Exports []Named
	Open    []*Resource
	Fresh   []*Resource
	imports map[string]int
}

// Import finds an import by name.
func (c *Component) Import(name string) *Extern { return find(c.Imports, &c.imports, name) }
