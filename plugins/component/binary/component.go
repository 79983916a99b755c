// SPDX-License-Identifier: Apache-2.0

package binary

import "github.com/wasmplane/wasmplane/plugins/component/ctype"

// Component is a decoded and validated component. Defs are in the order in which an instance is
// made; each adds to the index spaces that later ones refer to.
type Component struct {
	Type *ctype.Component
	Defs []Def
}

// Def is one of the definitions below.
type Def interface{ def() }

// CoreModule adds a core module.
type CoreModule struct {
	Bytes []byte // a part of what was decoded
	Type  *ctype.Module
}

// CoreInstantiate adds a core instance, made of a module with instances by their names.
type CoreInstantiate struct {
	Module uint32
	Args   map[string]uint32
}

// CoreBundle adds a core instance that consists of what is there.
type CoreBundle struct{ Exports []CoreItem }

// CoreItem is something core under a name.
type CoreItem struct {
	Name  string
	Sort  ctype.CoreSort
	Index uint32
}

// Nested adds a component.
type Nested struct{ Component *Component }

// Instantiate adds an instance of a component. Type is the type of the instance.
type Instantiate struct {
	Component uint32
	Args      []Item
	Type      *ctype.Instance
}

// Bundle adds an instance that consists of what is there.
type Bundle struct{ Exports []Item }

// Item is something under a name; of a type, Extern.Def says which.
type Item struct {
	Name   string
	Index  uint32
	Extern ctype.Extern
}

// AliasExport adds what an instance exports.
type AliasExport struct {
	Sort     ctype.Sort
	Instance uint32
	Name     string
}

// AliasCore adds what a core instance exports.
type AliasCore struct {
	Sort     ctype.CoreSort
	Instance uint32
	Name     string
}

// AliasOuter adds a module (Sort Core0) or component of an enclosing component, Count levels out.
type AliasOuter struct {
	Sort         ctype.Sort
	Count, Index uint32
}

// DefineResource makes a resource type.
type DefineResource struct {
	Resource *ctype.Resource
	Dtor     *uint32 // a core function
}

// Encoding is how strings are encoded.
type Encoding uint8

// The encodings.
const (
	UTF8 Encoding = iota
	UTF16
	Latin1 // or UTF-16, as each string says
)

// Options are those of a lifted or lowered function; nil = absent.
type Options struct {
	Encoding                    Encoding
	Memory, Realloc, PostReturn *uint32
}

// Lift adds a function made of a core function.
type Lift struct {
	Func    uint32
	Type    *ctype.Func
	Core    *ctype.CoreFunc
	Spilled *ctype.Type // the parameters as a tuple, where they go by memory
	Options Options
}

// Lower adds a core function made of a function.
type Lower struct {
	Func    uint32
	Type    *ctype.Func
	Core    *ctype.CoreFunc
	Spilled *ctype.Type // the parameters as a tuple, where they go by memory
	Options Options
}

// ResourceOp says what a built-in does with handles.
type ResourceOp uint8

// The built-ins of resources.
const (
	ResourceNew ResourceOp = iota
	ResourceDrop
	ResourceRep
)

// Builtin adds a core function that works on handles of a resource type.
type Builtin struct {
	Op       ResourceOp
	Resource *ctype.Resource
}

// Import adds what the component is given. What it adds of a type are resource types only.
type Import struct {
	Name   string
	Extern ctype.Extern
}

// Export adds what is exported once more, with the type that it has for others.
type Export struct {
	Name   string
	Index  uint32
	Extern ctype.Extern
	From   *ctype.Def // of a type: what was exported
}

func (*CoreModule) def()      {}
func (*CoreInstantiate) def() {}
func (*CoreBundle) def()      {}
func (*Nested) def()          {}
func (*Instantiate) def()     {}
func (*Bundle) def()          {}
func (*AliasExport) def()     {}
func (*AliasCore) def()       {}
func (*AliasOuter) def()      {}
func (*DefineResource) def()  {}
func (*Lift) def()            {}
func (*Lower) def()           {}
func (*Builtin) def()         {}
func (*Import) def()          {}
func (*Export) def()          {}
