// SPDX-License-Identifier: Apache-2.0

package binary

import (
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/component/bytereader"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

type scopeKind uint8

const (
	ofComponent scopeKind = iota
	ofComponentType
	ofInstanceType
)

// coreDef is an entry of the index space of core types: one of its fields is set.
type coreDef struct {
	fn     *ctype.CoreFunc
	module *ctype.Module
}

// scope is a component, or the type of one or of an instance, while it is read: its index spaces.
type scope struct {
	*decoder
	kind   scopeKind
	parent *scope
	depth  int

	coreTypes   []coreDef
	coreFuncs   []*ctype.CoreFunc
	coreValues  map[ctype.CoreSort][]*ctype.CoreExtern // tables, memories, globals
	coreModules []*ctype.Module
	coreInsts   []*ctype.Module

	types      []*ctype.Def
	funcs      []*ctype.Func
	components []*ctype.Component
	instances  []*ctype.Instance

	local   map[*ctype.Resource]bool // defined here
	imports *ctype.Names
	exports *ctype.Names
	typ     ctype.Component
	defs    []Def
	modules int
}

// decoder is what all scopes of one component share.
type decoder struct {
	set         *ctype.Set
	definitions int
	modules     int
}

func (d *decoder) scope(parent *scope, kind scopeKind) (*scope, error) {
	s := &scope{
		decoder: d, kind: kind, parent: parent, local: map[*ctype.Resource]bool{},
		coreValues: map[ctype.CoreSort][]*ctype.CoreExtern{}, imports: ctype.NewNames(), exports: ctype.NewNames(),
	}
	if parent != nil {
		s.depth = parent.depth + 1
	}
	if s.depth > bytereader.MaxNesting {
		return nil, fmt.Errorf("components and their types are nested deeper than %d", bytereader.MaxNesting)
	}
	return s, nil
}

// define counts a definition.
func (d *decoder) define(n int) error {
	if d.definitions += n; d.definitions > bytereader.MaxDefinitions {
		return fmt.Errorf("more than %d definitions", bytereader.MaxDefinitions)
	}
	return nil
}

func (d *decoder) countModule() error {
	if d.modules++; d.modules > bytereader.MaxModules {
		return fmt.Errorf("more than %d core modules and components", bytereader.MaxModules)
	}
	return nil
}

// weigh counts what an instance has in it.
func (d *decoder) weigh(i *ctype.Instance) error {
	if i.Weight() > ctype.MaxWeight {
		return fmt.Errorf("an instance with more than %d exports, those of instances in it included", ctype.MaxWeight)
	}
	return d.define(i.Weight())
}

func (s *scope) typeAt(i uint32) (*ctype.Def, error) { return bytereader.Get(s.types, i, "type") }

// valueType is the value type at an index.
func (s *scope) valueType(i uint32) (*ctype.Type, error) {
	d, err := s.typeAt(i)
	if err != nil {
		return nil, err
	}
	if d.Value == nil {
		return nil, fmt.Errorf("type index %d is not a defined type", i)
	}
	return d.Value, nil
}

func (s *scope) resource(i uint32) (*ctype.Resource, error) {
	d, err := s.typeAt(i)
	if err != nil {
		return nil, err
	}
	if d.Resource == nil {
		return nil, fmt.Errorf("type index %d is not a resource type", i)
	}
	return d.Resource, nil
}

func (s *scope) funcType(i uint32) (*ctype.Func, error) {
	d, err := s.typeAt(i)
	if err != nil {
		return nil, err
	}
	if d.Func == nil {
		return nil, fmt.Errorf("type index %d is not a function type", i)
	}
	return d.Func, nil
}

// outer is the scope so many levels out, and whether a component ends on the way.
func (s *scope) outer(count uint32) (*scope, bool, error) {
	at, crossed := s, false
	for i := uint32(0); i < count; i++ {
		crossed = crossed || at.kind == ofComponent
		if at = at.parent; at == nil {
			return nil, false, fmt.Errorf("invalid outer alias count of %d", count)
		}
	}
	return at, crossed, nil
}

// extern finds what an index of a sort stands for.
func (s *scope) extern(sort ctype.Sort, i uint32) (e ctype.Extern, err error) {
	e.Sort = sort
	switch sort {
	case ctype.Core0:
		e.Module, err = bytereader.Get(s.coreModules, i, "module")
	case ctype.Funcs:
		e.Func, err = bytereader.Get(s.funcs, i, "function")
	case ctype.Types:
		e.Def, err = s.typeAt(i)
	case ctype.Components:
		e.Component, err = bytereader.Get(s.components, i, "component")
	case ctype.Instances:
		e.Instance, err = bytereader.Get(s.instances, i, "instance")
	default:
		err = errValues
	}
	return e, err
}

// add puts something into the index space of its sort.
func (s *scope) add(e ctype.Extern) error {
	switch e.Sort {
	case ctype.Core0:
		s.coreModules = append(s.coreModules, e.Module)
	case ctype.Funcs:
		s.funcs = append(s.funcs, e.Func)
	case ctype.Types:
		s.types = append(s.types, e.Def)
	case ctype.Components:
		s.components = append(s.components, e.Component)
	case ctype.Instances:
		s.instances = append(s.instances, e.Instance)
	default:
		return errValues
	}
	return s.define(1)
}

var errValues = fmt.Errorf("values are not supported (they are not part of WASI 0.2)")

// coreExtern finds what an index of a core sort stands for.
func (s *scope) coreExtern(sort ctype.CoreSort, i uint32) (*ctype.CoreExtern, error) {
	if sort == ctype.CoreFuncs {
		f, err := bytereader.Get(s.coreFuncs, i, "core function")
		return &ctype.CoreExtern{Sort: sort, Func: f}, err
	}
	return bytereader.Get(s.coreValues[sort], i, sort.String())
}

func (s *scope) addCore(e *ctype.CoreExtern) error {
	if e.Sort == ctype.CoreFuncs {
		s.coreFuncs = append(s.coreFuncs, e.Func)
	} else {
		s.coreValues[e.Sort] = append(s.coreValues[e.Sort], e)
	}
	return s.define(1)
}
