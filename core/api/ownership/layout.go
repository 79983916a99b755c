// SPDX-License-Identifier: Apache-2.0

package ownership

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
)

// layout is how the shape of values of one type is drawn: a Go type together with
// what the schema says of merging it.
type layout struct {
	draws   drawing
	members []drawn   // of a struct
	elem    *layout   // of a pointer, list or map
	keys    []keyPath // of a list whose items have keys
	sole    bool      // the list of owners, whose only uid is not of the shape
	name    int       // of the list's key, where its values are replaced by numbers (see name)
}

type drawn struct {
	index  int
	layout *layout
}

// keyPath leads to a member of an item.
type keyPath struct{ index []int }

// drawing is what a value adds to a shape.
type drawing uint8

const (
	unknown drawing = iota // nothing may be said of a value that is there: its contents matter
	scalar                 // whether it is zero
	self                   // the same, of what encodes itself as a scalar
	pointer                // whether it is there, and what it points to
	members                // all members
	leaf                   // whether it is nil, empty or neither: atomic lists and maps, and bytes
	keyed                  // list items by their keys, and each item
	valued                 // list items by their values
	mapped                 // map keys, and each value
)

type layoutKey struct {
	t    reflect.Type
	name string
}

type layouts struct {
	schema *smd.Schema
	begun  map[layoutKey]*layout
}

func newLayout(s *smd.Schema, t reflect.Type, ref smd.TypeRef) *layout {
	b := &layouts{schema: s, begun: map[layoutKey]*layout{}}
	return b.of(t, ref)
}

var (
	selfEncoding    = reflect.TypeFor[json.Marshaler]()
	intOrString     = reflect.TypeFor[intstr.IntOrString]() // of any type to the schema, and always a scalar
	ownerReferences = reflect.TypeFor[[]metav1.OwnerReference]()
)

// of lays a type out. Named types of the schema may contain themselves; types that
// are described in place cannot.
func (b *layouts) of(t reflect.Type, ref smd.TypeRef) *layout {
	l := &layout{}
	if ref.NamedType != nil {
		key := layoutKey{t, *ref.NamedType}
		if known := b.begun[key]; known != nil {
			return known
		}
		b.begun[key] = l
	}
	atom, ok := b.schema.Resolve(ref)
	if !ok {
		return l
	}
	b.fill(l, t, ref, atom)
	return l
}

func (b *layouts) fill(l *layout, t reflect.Type, ref smd.TypeRef, atom smd.Atom) {
	onlyScalar := atom.Scalar != nil && atom.List == nil && atom.Map == nil
	switch kind := t.Kind(); {
	case kind == reflect.Pointer:
		l.draws, l.elem = pointer, b.of(t.Elem(), ref)
	case t.Implements(selfEncoding) || reflect.PointerTo(t).Implements(selfEncoding):
		if onlyScalar || t == intOrString && atom.Scalar != nil {
			l.draws = self
		}
	case kind == reflect.Struct && atom.Map != nil:
		l.draws = members
		b.members(l, t, ref, atom.Map)
	case kind == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		l.draws = leaf
	case kind == reflect.Slice && atom.List != nil:
		b.list(l, t, atom.List)
	case kind == reflect.Map && atom.Map != nil && t.Key().Kind() == reflect.String:
		if atom.Map.ElementRelationship == smd.Atomic {
			l.draws = leaf
			return
		}
		l.draws, l.elem = mapped, b.of(t.Elem(), atom.Map.ElementType)
	case scalarKind(kind):
		l.draws = scalar
	}
}

func scalarKind(k reflect.Kind) bool {
	return k == reflect.Bool || k == reflect.String || k >= reflect.Int && k <= reflect.Uint64 || k == reflect.Float32 || k == reflect.Float64
}

// keyKind: values of it may tell the items of a list apart.
func keyKind(k reflect.Kind) bool {
	return scalarKind(k) && k != reflect.Float32 && k != reflect.Float64
}

// members of a struct. What an atomic struct contains is drawn too: that tells
// more shapes apart than there are, never fewer.
func (b *layouts) members(l *layout, t reflect.Type, ref smd.TypeRef, m *smd.Map) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		if name == "" && (f.Anonymous || strings.Contains(options, "inline")) {
			inner := &layout{}
			if f.Type.Kind() == reflect.Struct {
				inner.draws = members
				b.members(inner, f.Type, ref, m)
			}
			l.members = append(l.members, drawn{i, inner})
			continue
		}
		if name == "" {
			name = f.Name
		}
		field := &layout{}
		if sf, ok := m.FindField(name); ok {
			field = b.of(f.Type, sf.Type)
		} else if m.ElementType != (smd.TypeRef{}) {
			field = b.of(f.Type, m.ElementType)
		}
		if f.Type == ownerReferences && name == "ownerReferences" {
			owners := *field
			owners.sole = true
			field = &owners
		}
		l.members = append(l.members, drawn{i, field})
	}
}

func (b *layouts) list(l *layout, t reflect.Type, list *smd.List) {
	switch {
	case list.ElementRelationship == smd.Atomic:
		l.draws = leaf
	case len(list.Keys) == 0:
		if keyKind(t.Elem().Kind()) {
			l.draws = valued
		}
	default:
		item := t.Elem()
		if item.Kind() != reflect.Struct {
			return
		}
		for _, name := range list.Keys {
			path := member(item, name)
			if path == nil {
				return
			}
			l.keys = append(l.keys, keyPath{path})
		}
		l.draws, l.elem = keyed, b.of(item, list.ElementType)
		if n := keyName(list.Keys); n > 0 && item.FieldByIndex(l.keys[0].index).Type.Kind() == reflect.String {
			l.name = n
		}
	}
}

// member finds a scalar member of a struct, or a pointer to a scalar, by its name
// in JSON.
func member(t reflect.Type, name string) []int {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "" && f.Anonymous && f.Type.Kind() == reflect.Struct {
			if inner := member(f.Type, name); inner != nil {
				return append([]int{i}, inner...)
			}
		}
		kind := f.Type.Kind()
		if kind == reflect.Pointer {
			kind = f.Type.Elem().Kind()
		}
		if tag == name && f.IsExported() && keyKind(kind) && !f.Type.Implements(selfEncoding) {
			return []int{i}
		}
	}
	return nil
}

// sketch is a shape being drawn: bits, and the keys between them.
type sketch struct {
	buf  []byte
	bits uint
	used uint
	keys []string
	// exact: the uid of the only owner is drawn, too, and values of keys that have names are replaced.
	exact bool
	names []name // those that were
}

var sketchPool = sync.Pool{New: func() any { return &sketch{} }}

func (s *sketch) reset() {
	clear(s.names) // the strings are those of objects
	s.buf, s.bits, s.used, s.names = s.buf[:0], 0, 0, s.names[:0]
}

func (s *sketch) bit(set bool) {
	if set {
		s.bits |= 1 << s.used
	}
	if s.used++; s.used == 8 {
		s.flush()
	}
}

func (s *sketch) flush() {
	if s.used > 0 {
		s.buf = append(s.buf, byte(s.bits))
		s.bits, s.used = 0, 0
	}
}

func (s *sketch) number(n uint64) {
	s.flush()
	for ; n >= 0x80; n >>= 7 {
		s.buf = append(s.buf, byte(n)|0x80)
	}
	s.buf = append(s.buf, byte(n))
}

func (s *sketch) text(t string) {
	s.number(uint64(len(t)))
	s.buf = append(s.buf, t...)
}

// maxSketch bounds a shape that is worth remembering.
const maxSketch = 4 << 10

// draw makes s the shape of v; false: it has something whose contents matter, or
// is too large.
func (l *layout) draw(s *sketch, v reflect.Value) bool {
	s.reset()
	ok := l.add(s, v)
	s.flush()
	return ok && len(s.buf) <= maxSketch
}

func (l *layout) add(s *sketch, v reflect.Value) bool {
	switch l.draws {
	case scalar:
		s.bit(!v.IsZero())
	case self:
		s.bit(isZero(v))
	case pointer:
		s.bit(!v.IsNil())
		return v.IsNil() || l.elem.add(s, v.Elem())
	case members:
		for i := range l.members {
			m := &l.members[i]
			if !m.layout.add(s, v.Field(m.index)) {
				return false
			}
		}
	case leaf:
		s.bit(v.IsNil())
		s.bit(v.Len() == 0)
	case keyed:
		return l.addItems(s, v)
	case valued:
		l.count(s, v)
		for i := range v.Len() {
			s.value(v.Index(i))
		}
	case mapped:
		return l.addMap(s, v)
	case unknown:
		return v.IsZero()
	}
	return true
}

// isZero of what encodes itself: a time without an instant is null, whatever its location.
func isZero(v reflect.Value) bool {
	if v.IsZero() {
		return true
	}
	if v.Kind() == reflect.Struct && v.CanAddr() {
		z, ok := v.Addr().Interface().(interface{ IsZero() bool })
		return ok && z.IsZero()
	}
	return false
}

func (l *layout) count(s *sketch, v reflect.Value) {
	s.bit(v.IsNil())
	s.number(uint64(v.Len()))
}

func (l *layout) addItems(s *sketch, v reflect.Value) bool {
	l.count(s, v)
	sole := l.sole && v.Len() == 1 && !s.exact
	for i := range v.Len() {
		item := v.Index(i)
		for _, k := range l.keys {
			key := item.FieldByIndex(k.index)
			if s.exact && l.name > 0 {
				if !s.name(l.name, key.String()) {
					return false
				}
				continue
			}
			if sole && simpleUID(key.String()) {
				s.bit(true)
				continue
			}
			s.bit(false)
			s.value(key)
		}
		if !l.elem.add(s, item) {
			return false
		}
	}
	return true
}

// value writes a scalar itself.
func (s *sketch) value(v reflect.Value) {
	if v.Kind() == reflect.Pointer {
		if s.bit(v.IsNil()); v.IsNil() {
			return
		}
		v = v.Elem()
	}
	switch {
	case v.Kind() == reflect.String:
		s.text(v.String())
	case v.CanInt():
		s.number(uint64(v.Int())) //nolint:gosec // any number will do that is another for another value
	case v.CanUint():
		s.number(v.Uint())
	default:
		s.bit(v.Bool())
	}
}

func (l *layout) addMap(s *sketch, v reflect.Value) bool {
	l.count(s, v)
	if v.Len() == 0 {
		return true
	}
	if m, ok := v.Interface().(map[string]string); ok && l.elem.draws == scalar { // labels and annotations: without reflection
		s.keys = s.keys[:0]
		for k := range m {
			s.keys = append(s.keys, k)
		}
		slices.Sort(s.keys)
		for _, k := range s.keys {
			s.text(k)
			s.bit(m[k] != "")
		}
		return true
	}
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, k := range keys {
		s.text(k.String())
		if !l.elem.add(s, v.MapIndex(k)) {
			return false
		}
	}
	return true
}

// shapes remembers what was made of a shape. It keeps two generations: what is
// used moves into the young one, and what has not been used since that was begun
// is forgotten when it is full.
type shapes[V interface{ size() int }] struct {
	mu         sync.RWMutex
	young, old map[string]V
	bytes      int // of the young one
}

// Bounds of a generation.
const (
	maxShapes     = 256
	maxShapeBytes = 256 << 10
)

func (s *shapes[V]) get(key []byte) (V, bool) {
	s.mu.RLock()
	made, ok := s.young[string(key)]
	if ok {
		s.mu.RUnlock()
		return made, true
	}
	made, ok = s.old[string(key)]
	s.mu.RUnlock()
	if ok {
		s.put(key, made)
	}
	return made, ok
}

func (s *shapes[V]) put(key []byte, made V) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := len(key) + made.size()
	if len(s.young) >= maxShapes || s.bytes+size > maxShapeBytes {
		s.old, s.young, s.bytes = s.young, nil, 0
	}
	if s.young == nil {
		s.young = map[string]V{}
	}
	s.young[string(key)] = made
	s.bytes += size
}
