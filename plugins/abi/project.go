// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"encoding/base64"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/wasmplane/wasmplane/plugins/abi/jsonvalue"
)

// Object is an API object inside a document. Decoded structs leave their kind and
// apiVersion empty; the projection writes those of GVK.
type Object = jsonvalue.Object

// Projection writes of a document what a hook declared: as JSON the document
// with nothing but those fields, in their places; flat an array with one cell
// for each field, in the order of the manifest. Without fields it writes the whole.
//
// Documents are Go structs with JSON tags, maps and Objects. They are read by
// reflection where they are: nothing is converted. A projection is safe for
// concurrent use.
type Projection struct {
	encoding Encoding
	paths    []Path
	aliases  map[string]Alternatives
	kinds    sync.Map // kind -> *resolved: aliases are looked up once for each kind
}

type resolved struct {
	tree   *branch
	fields []*selector // nil = leads nowhere for this kind
}

// selector is the way to one field of a flat table. The first shared steps are those
// of the field before it, which have been taken already.
type selector struct {
	steps  []*walk
	shared int
}

// walk is a step that remembers where its name was in the type that it met last:
// documents of one kind are of the same types.
type walk struct {
	step
	last atomic.Pointer[spot]
}

// spot is where a name is in a struct.
type spot struct {
	of      reflect.Type
	special bool                 // it is seen as what it encodes to
	field   *jsonvalue.FieldInfo // nil = it has no such field
}

// sharedSteps bounds the steps that are kept from one field to the next.
const sharedSteps = 6

// newSelector makes the way of a field behind another's.
func newSelector(steps []step, before *selector) *selector {
	s := &selector{steps: make([]*walk, len(steps))}
	for before != nil && s.shared < min(len(steps), len(before.steps), sharedSteps) && steps[s.shared].kind != stepEach &&
		steps[s.shared] == before.steps[s.shared].step {
		s.steps[s.shared] = before.steps[s.shared]
		s.shared++
	}
	for i := s.shared; i < len(steps); i++ {
		s.steps[i] = &walk{step: steps[i]}
	}
	return s
}

// get is the function get, for this step.
func (s *walk) get(v reflect.Value) (reflect.Value, bool) {
	v, gvk := jsonvalue.Open(v)
	if !v.IsValid() || v.Kind() != reflect.Struct {
		return jsonvalue.Get(v, s.name)
	}
	at := s.last.Load()
	if t := v.Type(); at == nil || at.of != t {
		at = newSpot(t, s.name)
		s.last.Store(at)
	}
	switch {
	case at.special:
		return jsonvalue.Get(jsonvalue.Container(v), s.name)
	case at.field == nil:
		return v, false
	}
	return at.field.Read(v, gvk)
}

func newSpot(t reflect.Type, name string) *spot {
	info := jsonvalue.InfoOf(t)
	at := &spot{of: t, special: info.Form != jsonvalue.Plain}
	if i, ok := info.ByName[name]; ok {
		at.field = &info.Fields[i]
	}
	return at
}

// branch is a node of the tree that the fields of a hook make together.
type branch struct {
	name  string // key in the output
	via   []string
	leaf  bool
	keys  []*branch
	items *branch
}

// NewProjection compiles the fields of a hook.
func NewProjection(h *Hook) *Projection {
	return &Projection{encoding: h.Encoding, paths: h.paths, aliases: h.places}
}

// Write writes doc, whose alternatives are those of kind, to w.
func (p *Projection) Write(w *Writer, doc any, kind string) {
	w.Reset(p.encoding)
	v := reflect.ValueOf(doc)
	if len(p.paths) == 0 {
		w.value(v)
		return
	}
	r := p.resolve(kind)
	if p.encoding == JSON {
		w.prune(v, r.tree)
		return
	}
	w.BeginArray(len(r.fields))
	w.fields(v, r.fields)
	w.EndArray()
}

func (p *Projection) resolve(kind string) *resolved {
	if r, ok := p.kinds.Load(kind); ok {
		return r.(*resolved)
	}
	r := &resolved{tree: &branch{}}
	var before *selector
	for _, path := range p.paths {
		flat := make([]step, 0, len(path.steps)+4)
		at, lost := r.tree, false
		for _, s := range path.steps {
			switch s.kind {
			case stepEach:
				if at.items == nil {
					at.items = &branch{}
				}
				at = at.items
				flat = append(flat, s)
			case stepAlias:
				via, ok := p.place(s.name, kind)
				lost = lost || !ok
				for _, name := range via {
					flat = append(flat, step{kind: stepKey, name: name})
				}
				if !lost {
					at = at.child(s.name, via)
				}
			default:
				flat = append(flat, s)
				at = at.child(s.name, []string{s.name})
			}
		}
		if lost {
			r.fields, before = append(r.fields, nil), nil
			continue
		}
		at.leaf = true
		before = newSelector(flat, before)
		r.fields = append(r.fields, before)
	}
	actual, _ := p.kinds.LoadOrStore(kind, r)
	return actual.(*resolved)
}

// place says where an alias leads for a kind.
func (p *Projection) place(alias, kind string) ([]string, bool) { return place(p.aliases, alias, kind) }

func place(aliases map[string]Alternatives, alias, kind string) ([]string, bool) {
	a := aliases[alias]
	text, ok := a[kind]
	if !ok {
		text, ok = a["*"]
	}
	if !ok || text == "" {
		return nil, ok
	}
	path, err := ParsePath(text)
	if err != nil {
		return nil, false
	}
	var names []string
	for _, s := range path.steps {
		names = append(names, s.name)
	}
	return names, true
}

func (b *branch) child(name string, via []string) *branch {
	for _, c := range b.keys {
		if c.name == name {
			return c
		}
	}
	c := &branch{name: name, via: via}
	b.keys = append(b.keys, c)
	return c
}

// prune writes what of v the tree selects, as JSON.
func (w *Writer) prune(v reflect.Value, b *branch) {
	v = jsonvalue.Container(v)
	switch {
	case b.leaf || !v.IsValid():
		w.value(v)
	case b.items != nil && jsonvalue.IsArray(v):
		w.BeginArray(v.Len())
		for i := range v.Len() {
			w.prune(v.Index(i), b.items)
		}
		w.EndArray()
	default:
		w.BeginObject(0)
		for _, c := range b.keys {
			child, ok := descend(v, c.via)
			if ok && c.fits(child) {
				w.Key(c.name)
				w.prune(child, c)
			}
		}
		w.EndObject()
	}
}

// fits says whether a value can hold what the branch selects in it.
func (b *branch) fits(v reflect.Value) bool {
	if b.leaf {
		return true
	}
	v = jsonvalue.Container(v)
	if !v.IsValid() {
		return true // null
	}
	return b.items != nil && jsonvalue.IsArray(v) || len(b.keys) > 0 && jsonvalue.IsObject(v)
}

// fields writes the values of all fields into a flat table.
func (w *Writer) fields(root reflect.Value, fields []*selector) {
	var way [sharedSteps + 1]reflect.Value // the values behind the first steps
	way[0] = root
	reached := 0 // how many steps of the field before led somewhere
	for _, f := range fields {
		if f == nil {
			w.Absent()
			reached = 0
			continue
		}
		n := min(f.shared, reached)
		if n < f.shared { // what this field shares with the one before led nowhere
			w.Absent()
			continue
		}
		v, ok := way[n], true
		for ; n < len(f.steps) && n < sharedSteps && f.steps[n].kind != stepEach; n++ {
			if v, ok = f.steps[n].get(v); !ok {
				break
			}
			way[n+1] = v
		}
		if reached = n; !ok {
			w.Absent()
			continue
		}
		w.field(v, f.steps[n:])
	}
}

// field writes the value of one path.
func (w *Writer) field(v reflect.Value, steps []*walk) {
	for i, s := range steps {
		if s.kind == stepEach {
			v = jsonvalue.Container(v)
			if !v.IsValid() || !jsonvalue.IsArray(v) {
				w.Absent()
				return
			}
			n := v.Len()
			w.BeginArray(n)
			for j := range n {
				w.field(v.Index(j), steps[i+1:])
			}
			w.EndArray()
			return
		}
		var ok bool
		if v, ok = s.get(v); !ok {
			w.Absent()
			return
		}
	}
	w.value(v)
}

func descend(v reflect.Value, names []string) (reflect.Value, bool) {
	for _, name := range names {
		var ok bool
		if v, ok = jsonvalue.Get(v, name); !ok {
			return v, false
		}
	}
	return v, true
}

// value writes a whole value.
func (w *Writer) value(v reflect.Value) {
	if o := jsonvalue.KeptBy(v); o != nil && !w.flat && w.kept(o) {
		return
	}
	v, gvk := jsonvalue.Open(v)
	if !v.IsValid() {
		w.Null()
		return
	}
	switch v.Kind() {
	case reflect.String:
		w.String(v.String())
	case reflect.Bool:
		w.Bool(v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		w.Int(v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		w.Int(int64(v.Uint()))
	case reflect.Float32, reflect.Float64:
		w.Float(v.Float())
	case reflect.Struct:
		w.structure(v, gvk)
	case reflect.Map:
		w.mapping(v)
	case reflect.Slice, reflect.Array:
		w.array(v)
	default:
		w.Null()
	}
}

// keptName is under which objects keep their JSON.
const keptName = "plugins: the whole as JSON"

// kept writes an object as whoever keeps it has it: it is written once for all plugins that want the whole.
func (w *Writer) kept(o *Object) bool {
	text, err := o.Keeper.Kept(keptName, func() ([]byte, error) {
		var own Writer
		own.value(reflect.ValueOf(&Object{Object: o.Object, GVK: o.GVK}))
		return own.buf, nil
	})
	if err != nil {
		return false
	}
	w.separate()
	w.buf = append(w.buf, text...)
	return true
}

func (w *Writer) array(v reflect.Value) {
	if v.Kind() == reflect.Slice && v.IsNil() {
		w.Null()
		return
	}
	if v.Type().Elem().Kind() == reflect.Uint8 && v.Kind() == reflect.Slice {
		w.String(base64.StdEncoding.EncodeToString(v.Bytes()))
		return
	}
	w.BeginArray(v.Len())
	for i := range v.Len() {
		w.value(v.Index(i))
	}
	w.EndArray()
}

var stringMapType = reflect.TypeFor[map[string]string]()

func (w *Writer) mapping(v reflect.Value) {
	if v.IsNil() {
		w.Null()
		return
	}
	if v.Type() == stringMapType {
		w.strings(v.Interface().(map[string]string))
		return
	}
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	w.BeginObject(len(keys))
	for _, k := range keys {
		w.Key(k.String())
		w.value(v.MapIndex(k))
	}
	w.EndObject()
}

// strings writes labels and annotations, which most policies read.
func (w *Writer) strings(m map[string]string) {
	var space [16]string
	keys := space[:0]
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	w.BeginObject(len(keys))
	for _, k := range keys {
		w.Key(k)
		w.String(m[k])
	}
	w.EndObject()
}

func (w *Writer) structure(v reflect.Value, gvk *schema.GroupVersionKind) {
	info := jsonvalue.InfoOf(v.Type())
	switch info.Form {
	case jsonvalue.Quantity:
		q := v.Interface().(resource.Quantity)
		w.String(q.String())
		return
	case jsonvalue.Time:
		t := v.Interface().(metav1.Time)
		if t.IsZero() {
			w.Null()
			return
		}
		w.String(t.UTC().Format("2006-01-02T15:04:05Z07:00"))
		return
	case jsonvalue.IntOrString:
		i := v.Interface().(intstr.IntOrString)
		if i.Type == intstr.Int {
			w.Int(int64(i.IntVal))
		} else {
			w.String(i.StrVal)
		}
		return
	case jsonvalue.Marshaler:
		w.value(reflect.ValueOf(jsonvalue.Decoded(v)))
		return
	case jsonvalue.Plain:
	}
	n := 0
	if w.flat {
		for i := range info.Fields {
			if _, ok := info.Fields[i].Read(v, gvk); ok {
				n++
			}
		}
	}
	w.BeginObject(n)
	for i := range info.Fields {
		if child, ok := info.Fields[i].Read(v, gvk); ok {
			w.Key(info.Fields[i].Name)
			w.value(child)
		}
	}
	w.EndObject()
}
