// SPDX-License-Identifier: Apache-2.0

package encode

import (
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

// declaration is one of a world's declarations; its encoding is that of an item of the section.
type declaration struct {
	section byte
	item    []byte
}

// walk returns the item with other indices.
func (d declaration) walk(index func(sort ctype.Sort, i uint32) uint32) []byte {
	c := &cursor{b: d.item, index: index}
	switch d.section {
	case sectionType:
		c.skipType()
	case sectionAlias:
		c.skipAlias()
	case sectionImport:
		c.externName()
		c.skipExtern()
	}
	return c.rewritten()
}

// adds is the index space that the item adds to, and the name of what it imports.
func (d declaration) adds() (sort ctype.Sort, imports string) {
	c := &cursor{b: d.item}
	switch d.section {
	case sectionAlias:
		return ctype.Sort(c.byte()), ""
	case sectionImport:
		name := c.externName()
		return ctype.Sort(c.byte()), name
	}
	return ctype.Types, ""
}

// aliased says what the item takes out of which instance.
func (d declaration) aliased() (instance uint32, name string, is bool) {
	c := &cursor{b: d.item}
	if d.section != sectionAlias || c.byte() == byte(ctype.Core0) || c.byte() == aliasOuter {
		return 0, "", false
	}
	return c.u32(), c.name(), true
}

// place is an index in the index space of a sort.
type place struct {
	sort ctype.Sort
	i    uint32
}

// imports are those of the component: what is used of several worlds, each import once, with the types that it needs.
type imports struct {
	items     []declaration
	counts    map[ctype.Sort]uint32
	index     map[string]uint32        // of an import, in the index space of its sort
	types     map[string]*ctype.Extern // of an import
	instances []string                 // the names of imported instances, by index
}

func newImports() *imports {
	return &imports{counts: map[ctype.Sort]uint32{}, index: map[string]uint32{}, types: map[string]*ctype.Extern{}}
}

// add adds the imports of a world that are used, and returns what the indices of its types become. An import that is
// there already, of another world, is not added again.
func (m *imports) add(w *world, used map[string]bool) (map[place]uint32, error) {
	at, needed := m.needed(w, used)
	become := map[place]uint32{}
	for k, d := range w.before {
		if !needed[k] {
			continue
		}
		sort, name := d.adds()
		if there := m.types[name]; name != "" && there != nil {
			if there.Sort != sort {
				return nil, fmt.Errorf("it imports %s as %s, which was imported before as %s", name, sort, there.Sort)
			}
			become[at[k]] = m.index[name]
			continue
		}
		item := declaration{d.section, d.walk(func(sort ctype.Sort, i uint32) uint32 { return become[place{sort, i}] })}
		if i, alias, is := item.aliased(); is {
			if of := m.types[m.instances[i]]; of != nil && of.Instance.Export(alias) == nil {
				return nil, fmt.Errorf("it needs %s of %s, which was imported before without that", alias, m.instances[i])
			}
		}
		become[at[k]] = m.counts[sort]
		m.counts[sort]++
		m.items = append(m.items, item)
		if sort == ctype.Instances {
			m.instances = append(m.instances, name)
		}
		if name != "" {
			m.index[name], m.types[name] = become[at[k]], w.typ.Import(name)
		}
	}
	return become, nil
}

// needed says where each declaration of a world stands, and which are needed: by imports that are used, by exported functions,
// or by a declaration that is needed itself.
func (m *imports) needed(w *world, used map[string]bool) (at []place, needed []bool) {
	at, needed = make([]place, len(w.before)), make([]bool, len(w.before))
	counts, by := map[ctype.Sort]uint32{}, map[place]int{}
	for k, d := range w.before {
		sort, _ := d.adds()
		at[k] = place{sort, counts[sort]}
		by[at[k]] = k
		counts[sort]++
	}
	need := func(sort ctype.Sort, i uint32) uint32 {
		if k, there := by[place{sort, i}]; there {
			needed[k] = true
		}
		return i
	}
	for _, t := range w.exported {
		need(ctype.Types, t)
	}
	for k := len(w.before) - 1; k >= 0; k-- {
		_, name := w.before[k].adds()
		needed[k] = needed[k] || used[name]
		if needed[k] && m.types[name] == nil {
			w.before[k].walk(need)
		}
	}
	return at, needed
}
