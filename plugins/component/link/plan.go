// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

// Bounds of one plan.
const (
	maxInstances = 512     // of components, and as many of core modules
	maxWork      = 1 << 18 // definitions that are followed, imports that are wired
)

// Program is what instances of one component are made of.
type Program struct {
	component *binary.Component
	sites     []site
	functions []function // of the canonical ABI, called from core code
	lifts     []lift
	parents   []int // of component instances; the root has -1
	resources []resource
	exports   *instance
	imports   []Import
	work      int
	segments  int // of data, that are remembered
}

// Import is a function that the component wants of its host.
type Import struct {
	Interface string // by its WIT name; "" where the function is imported by itself
	Name      string
	Type      *ctype.Func
}

// String names it as errors do.
func (i Import) String() string {
	if i.Interface == "" {
		return i.Name
	}
	return i.Interface + "#" + i.Name
}

// ref says where something core comes from: a core instance's export, or a function of the canonical ABI.
type ref struct {
	site     int // -1: function
	name     string
	function int
}

// site is one instantiation of a core module.
type site struct {
	module  []byte
	wires   []ref // by import, in the module's order
	globals []ref // those of them that are globals
	data    *data
}

// options are those of a lifted or lowered function, resolved.
type options struct {
	encoding                    binary.Encoding
	memory, realloc, postReturn *ref
}

// function is a core function that the canonical ABI makes.
type function struct {
	instance int
	core     *ctype.CoreFunc
	resource int // of a built-in
	builtin  *binary.Builtin
	lower    *binary.Lower
	options  options
	callee   callee
	env      map[*ctype.Resource]int
}

// callee is what a lowered function calls: a lifted one, or one of the host.
type callee struct{ lift, host int }

// lift is a function of a component.
type lift struct {
	instance int
	def      *binary.Lift
	core     ref
	options  options
	env      map[*ctype.Resource]int
}

// resource is a resource type of an instance.
type resource struct {
	name     string
	instance int // that makes it; -1: the host
	iface    string
	key      hostType // of the host's
	dtor     *ref
}

// value is something of a component: the field of its sort is set.
type value struct {
	sort      ctype.Sort
	module    *module
	function  callee
	component *component
	instance  *instance
	resource  int // of a type; -1 where it is no resource
}

type module struct {
	bytes []byte
	typ   *ctype.Module
	data  *data // nil = it has not been instantiated yet
}

// component is one with the instance that encloses it, whose modules and components it may name.
type component struct {
	def   *binary.Component
	outer *scope
}

type instance struct{ exports map[string]value }

// coreInstance finds what a core instance exports.
type coreInstance struct {
	site  int // -1: a bundle
	items map[string]ref
}

func (c *coreInstance) export(name string) ref {
	if c.site >= 0 {
		return ref{site: c.site, name: name}
	}
	return c.items[name]
}

// scope is a component instance while its definitions are followed.
type scope struct {
	p     *Program
	id    int
	outer *scope
	env   map[*ctype.Resource]int

	coreItems  map[ctype.CoreSort][]ref
	modules    []*module
	cores      []*coreInstance
	functions  []callee
	components []*component
	instances  []*instance
	exports    map[string]value
}

// Plan works out what instances of a component are made of.
func Plan(c *binary.Component) (*Program, error) {
	p := &Program{component: c}
	exports, err := p.instantiate(&component{def: c}, -1, nil)
	if err != nil {
		return nil, err
	}
	p.exports = exports
	return p, nil
}

// Imports are the functions that the host has to give.
func (p *Program) Imports() []Import { return p.imports }

// Type is the component's type.
func (p *Program) Type() *ctype.Component { return p.component.Type }

func (p *Program) spend(n int) error {
	if p.work += n; p.work > maxWork {
		return fmt.Errorf("an instance of the component takes more than %d steps to make", maxWork)
	}
	return nil
}

// instantiate follows a component with what it is given; the root is given the host's.
func (p *Program) instantiate(c *component, parent int, args map[string]value) (*instance, error) {
	if len(p.parents) >= maxInstances {
		return nil, fmt.Errorf("more than %d component instances", maxInstances)
	}
	s := &scope{
		p: p, id: len(p.parents), outer: c.outer, env: map[*ctype.Resource]int{},
		coreItems: map[ctype.CoreSort][]ref{}, exports: map[string]value{},
	}
	p.parents = append(p.parents, parent)
	for _, d := range c.def.Defs {
		if err := p.spend(1); err != nil {
			return nil, err
		}
		if err := s.follow(d, args); err != nil {
			return nil, err
		}
	}
	return &instance{exports: s.exports}, nil
}

func (s *scope) follow(d binary.Def, args map[string]value) error {
	switch d := d.(type) {
	case *binary.CoreModule:
		s.modules = append(s.modules, &module{bytes: d.Bytes, typ: d.Type})
	case *binary.CoreInstantiate:
		return s.coreInstantiate(d)
	case *binary.CoreBundle:
		s.coreBundle(d)
	case *binary.Nested:
		s.components = append(s.components, &component{def: d.Component, outer: s})
	case *binary.Instantiate:
		return s.instantiate(d)
	case *binary.Bundle:
		in := &instance{exports: map[string]value{}}
		for _, i := range d.Exports {
			in.exports[i.Name] = s.item(i.Extern, i.Index)
		}
		s.instances = append(s.instances, in)
	case *binary.AliasExport:
		s.add(s.instances[d.Instance].exports[d.Name])
	case *binary.AliasCore:
		s.coreItems[d.Sort] = append(s.coreItems[d.Sort], s.cores[d.Instance].export(d.Name))
	case *binary.AliasOuter:
		s.aliasOuter(d)
	case *binary.DefineResource:
		r := resource{name: d.Resource.Name, instance: s.id}
		if d.Dtor != nil {
			r.dtor = s.function(*d.Dtor)
		}
		s.env[d.Resource] = len(s.p.resources)
		s.p.resources = append(s.p.resources, r)
	case *binary.Lift:
		s.p.lifts = append(s.p.lifts, lift{instance: s.id, def: d, core: *s.function(d.Func), options: s.options(&d.Options), env: s.env})
		s.functions = append(s.functions, callee{lift: len(s.p.lifts) - 1, host: -1})
	case *binary.Lower:
		s.addFunction(function{core: d.Core, lower: d, options: s.options(&d.Options), callee: s.functions[d.Func]})
	case *binary.Builtin:
		f := &ctype.CoreFunc{Params: []ctype.Core{ctype.I32}, Results: []ctype.Core{ctype.I32}}
		if d.Op == binary.ResourceDrop {
			f.Results = nil
		}
		s.addFunction(function{core: f, builtin: d, resource: s.env[d.Resource]})
	case *binary.Import:
		return s.addImport(d, args)
	case *binary.Export:
		v := s.item(d.Extern, d.Index)
		if d.From != nil {
			v = s.typeOf(d.From)
		}
		s.bind(d.Extern, v)
		s.add(v)
		s.exports[d.Name] = v
	default:
		return fmt.Errorf("a definition of unknown kind %T", d)
	}
	return nil
}

func (s *scope) function(i uint32) *ref { return &s.coreItems[ctype.CoreFuncs][i] }

func (s *scope) addFunction(f function) {
	f.instance, f.env = s.id, s.env
	s.p.functions = append(s.p.functions, f)
	s.coreItems[ctype.CoreFuncs] = append(s.coreItems[ctype.CoreFuncs], ref{site: -1, function: len(s.p.functions) - 1})
}

func (s *scope) options(o *binary.Options) options {
	out := options{encoding: o.Encoding}
	if o.Memory != nil {
		out.memory = &s.coreItems[ctype.CoreMemories][*o.Memory]
	}
	if o.Realloc != nil {
		out.realloc = s.function(*o.Realloc)
	}
	if o.PostReturn != nil {
		out.postReturn = s.function(*o.PostReturn)
	}
	return out
}

func (s *scope) coreInstantiate(d *binary.CoreInstantiate) error {
	if len(s.p.sites) >= maxInstances {
		return fmt.Errorf("more than %d core instances", maxInstances)
	}
	m := s.modules[d.Module]
	if err := s.p.spend(len(m.typ.Imports)); err != nil {
		return err
	}
	if m.data == nil {
		m.data = readData(m.bytes, m.typ, maxSegments-s.p.segments)
		s.p.segments += len(m.data.active)
	}
	at := site{module: m.bytes, data: m.data}
	for _, i := range m.typ.Imports {
		at.wires = append(at.wires, s.cores[d.Args[i.Module]].export(i.Name))
		if i.Type.Sort == ctype.CoreGlobals {
			at.globals = append(at.globals, at.wires[len(at.wires)-1])
		}
	}
	s.p.sites = append(s.p.sites, at)
	s.cores = append(s.cores, &coreInstance{site: len(s.p.sites) - 1})
	return nil
}

func (s *scope) coreBundle(d *binary.CoreBundle) {
	in := &coreInstance{site: -1, items: map[string]ref{}}
	for _, e := range d.Exports {
		in.items[e.Name] = s.coreItems[e.Sort][e.Index]
	}
	s.cores = append(s.cores, in)
}

func (s *scope) instantiate(d *binary.Instantiate) error {
	args := map[string]value{}
	for _, a := range d.Args {
		args[a.Name] = s.item(a.Extern, a.Index)
	}
	in, err := s.p.instantiate(s.components[d.Component], s.id, args)
	if err != nil {
		return err
	}
	s.instances = append(s.instances, in)
	s.bind(ctype.Extern{Sort: ctype.Instances, Instance: d.Type}, value{sort: ctype.Instances, instance: in})
	return nil
}

// item is what an index stands for.
func (s *scope) item(e ctype.Extern, i uint32) value {
	v := value{sort: e.Sort, resource: -1}
	switch e.Sort {
	case ctype.Core0:
		v.module = s.modules[i]
	case ctype.Funcs:
		v.function = s.functions[i]
	case ctype.Components:
		v.component = s.components[i]
	case ctype.Instances:
		v.instance = s.instances[i]
	case ctype.Types:
		return s.typeOf(e.Def)
	default:
	}
	return v
}

func (s *scope) typeOf(d *ctype.Def) value {
	v := value{sort: ctype.Types, resource: -1}
	if d.Resource != nil {
		if r, ok := s.env[d.Resource]; ok {
			v.resource = r
		}
	}
	return v
}

func (s *scope) add(v value) {
	switch v.sort {
	case ctype.Core0:
		s.modules = append(s.modules, v.module)
	case ctype.Funcs:
		s.functions = append(s.functions, v.function)
	case ctype.Components:
		s.components = append(s.components, v.component)
	case ctype.Instances:
		s.instances = append(s.instances, v.instance)
	default:
	}
}

func (s *scope) aliasOuter(d *binary.AliasOuter) {
	at := s
	for range d.Count {
		at = at.outer
	}
	if d.Sort == ctype.Components {
		s.components = append(s.components, at.components[d.Index])
		return
	}
	s.modules = append(s.modules, at.modules[d.Index])
}

// bind learns which resource types a value has where its static type leaves them open.
func (s *scope) bind(e ctype.Extern, v value) {
	s.p.work++ // spend says so when it is too much
	switch {
	case e.Sort == ctype.Types && e.Def.Resource != nil:
		if _, known := s.env[e.Def.Resource]; !known && v.resource >= 0 {
			s.env[e.Def.Resource] = v.resource
		}
	case e.Sort == ctype.Instances && v.instance != nil:
		for _, x := range e.Instance.Exports {
			s.bind(x.Extern, v.instance.exports[x.Name])
		}
	}
}

func (s *scope) addImport(d *binary.Import, args map[string]value) error {
	if args == nil {
		v, err := s.hosted(d.Name, "", d.Extern)
		if err != nil {
			return err
		}
		s.add(v)
		return nil
	}
	v := args[d.Name]
	s.bind(d.Extern, v)
	s.add(v)
	return nil
}

// hosted is what the host gives for an import.
func (s *scope) hosted(name, iface string, e ctype.Extern) (value, error) {
	v := value{sort: e.Sort, resource: -1}
	switch e.Sort {
	case ctype.Funcs:
		s.p.imports = append(s.p.imports, Import{Interface: iface, Name: name, Type: e.Func})
		v.function = callee{lift: -1, host: len(s.p.imports) - 1}
	case ctype.Types:
		if r := e.Def.Resource; r != nil {
			if _, known := s.env[r]; !known {
				s.env[r] = len(s.p.resources)
				s.p.resources = append(s.p.resources, resource{name: name, instance: -1, iface: iface, key: hostKey(iface, name)})
			}
			v.resource = s.env[r]
		}
	case ctype.Instances:
		if iface != "" {
			return v, fmt.Errorf("import %s: an instance in an instance is not given", iface)
		}
		v.instance = &instance{exports: map[string]value{}}
		for _, x := range e.Instance.Exports {
			part, err := s.hosted(x.Name, name, x.Extern)
			if err != nil {
				return v, err
			}
			v.instance.exports[x.Name] = part
		}
	default:
		return v, fmt.Errorf("import %s: a %s is not given to components", name, e.Sort)
	}
	return v, nil
}
