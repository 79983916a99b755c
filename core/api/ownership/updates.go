// SPDX-License-Identifier: Apache-2.0

package ownership

import (
	"bytes"
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// What an update does to managed fields depends on which fields the two objects
// have, on which of those that both have differ, on what was owned before, and on
// who updates; not on values, but for which of some are the same (see name).
// Updates repeat even more than creates do (every kubelet reports the same conditions, every lease is renewed), so what upstream's
// code made of one is kept.

// outcome is what an update made of managed fields.
type outcome []owned

// owned is an entry of managed fields.
type owned struct {
	entry metav1.ManagedFieldsEntry // without its time
	// pieces of the encoded set; the name of such a number stands behind each but the last.
	pieces [][]byte
	names  []int
	// from is the entry that has the time already; -1: it is the update's.
	from int
}

func (o outcome) size() int {
	n := 0
	for i := range o {
		n += 200
		for _, p := range o[i].pieces {
			n += len(p) + 40
		}
	}
	return n
}

// text is the encoded set with the names of an update.
func (o *owned) text(names []name) []byte {
	if len(o.names) == 0 {
		return o.pieces[0] // shared: nobody changes encoded fields in place
	}
	n := 0
	for i, p := range o.pieces {
		n += len(p)
		if i < len(o.names) {
			n += len(names[o.names[i]].value)
		}
	}
	text := make([]byte, 0, n)
	for i, p := range o.pieces {
		text = append(text, p...)
		if i < len(o.names) {
			text = append(text, names[o.names[i]].value...)
		}
	}
	return text
}

// take splits an encoded set; false: it has names that the update did not have.
func (o *owned) take(encoded []byte, s *sketch) bool {
	return split(bytes.Clone(encoded), func(piece []byte, key int, value string) bool {
		o.pieces = append(o.pieces, piece)
		if key == 0 {
			return true
		}
		at := s.find(key, value)
		o.names = append(o.names, at)
		return at >= 0
	})
}

// maxEntries are the most entries of an update that is remembered: upstream joins
// the oldest of more than ten, which depends on their times.
const maxEntries = 9

// update is one that may be remembered.
type update struct {
	m       *Manager
	manager string
	before  []metav1.ManagedFieldsEntry
	drawn   *sketch
	key     []byte
}

// known describes an update of two pruned objects; false: it is not one that can
// be remembered.
func (m *Manager) known(s *sketch, a, b runtime.Object, manager string) (*update, bool) {
	live, err1 := meta.Accessor(a)
	next, err2 := meta.Accessor(b)
	if err1 != nil || err2 != nil || !utf8.ValidString(manager) || m.layout() == nil {
		return nil, false
	}
	u := &update{m: m, manager: manager, before: live.GetManagedFields(), drawn: s}
	if given := next.GetManagedFields(); m.cfg.Subresource == "" && given != nil {
		if !sameEntries(u.before, given) {
			return nil, false // set by hand
		}
		u.before = given // with the times that they have there
	}
	if n := len(u.before); n == 0 || n > maxEntries {
		return nil, false
	}
	was, is := live.GetManagedFields(), next.GetManagedFields()
	live.SetManagedFields(nil)
	next.SetManagedFields(nil)
	ok := m.layout().drawPair(s, reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
	live.SetManagedFields(was)
	next.SetManagedFields(is)
	if !ok {
		return nil, false
	}
	s.text(manager)
	for i, e := range u.before {
		for _, other := range u.before[:i] {
			if sameOwner(e, other) {
				return nil, false
			}
		}
		for _, t := range []string{e.Manager, string(e.Operation), e.Subresource, e.FieldsType} {
			s.text(t)
		}
		if !s.fields(rawOf(e)) {
			return nil, false
		}
	}
	s.order()
	u.key = s.buf
	return u, len(s.buf) <= 2*maxSketch
}

// drawPair makes s what two objects are to upstream's comparison.
func (l *layout) drawPair(s *sketch, a, b reflect.Value) bool {
	s.reset()
	s.exact = true
	ok := l.pair(s, a, b)
	s.exact = false
	s.flush()
	return ok && len(s.buf) <= maxSketch
}

// outcome of an update that was seen before.
func (u *update) outcome() ([]metav1.ManagedFieldsEntry, bool) {
	seen, ok := u.m.updates.get(u.key)
	if !ok {
		return nil, false
	}
	if len(seen) == 0 {
		return nil, true
	}
	out := make([]metav1.ManagedFieldsEntry, len(seen))
	for i := range seen {
		o := &seen[i]
		e := o.entry
		e.FieldsV1 = &metav1.FieldsV1{}
		e.FieldsV1.SetRawBytes(o.text(u.drawn.names))
		if o.from >= 0 {
			e.Time = u.before[o.from].Time
		} else {
			e.Time = &metav1.Time{Time: time.Now().UTC()}
		}
		out[i] = e
	}
	slices.SortFunc(out, inOrder)
	return out, true
}

// inOrder is the order in which upstream keeps managed fields.
func inOrder(p, q metav1.ManagedFieldsEntry) int {
	seconds := func(t *metav1.Time) int64 {
		if t == nil {
			return 0
		}
		return t.Unix()
	}
	return cmp.Or(cmp.Compare(p.Operation, q.Operation), cmp.Compare(seconds(p.Time), seconds(q.Time)),
		cmp.Compare(p.Manager, q.Manager), cmp.Compare(p.APIVersion, q.APIVersion), cmp.Compare(p.Subresource, q.Subresource))
}

// remember keeps what upstream's code has made of the update.
func (u *update) remember(made []metav1.ManagedFieldsEntry) {
	out := make(outcome, 0, len(made))
	for _, e := range made {
		o := owned{entry: e, from: -1}
		if !o.take(rawOf(e), u.drawn) {
			return
		}
		for i, was := range u.before {
			if sameOwner(was, e) && was.Time == e.Time { // the very same: it was not touched
				o.from = i
			}
		}
		self := metav1.ManagedFieldsEntry{Manager: u.manager, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: u.m.cfg.Subresource}
		if self.Manager == "" {
			self.Manager = "unknown"
		}
		if e.FieldsV1 == nil || o.from < 0 && !sameOwner(self, e) {
			return
		}
		o.entry.Time, o.entry.FieldsV1 = nil, nil
		out = append(out, o)
	}
	u.m.updates.put(u.key, out)
}

// sameOwner: all entries are of the manager's own version.
func sameOwner(a, b metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.Subresource == b.Subresource
}

func sameEntries(a, b []metav1.ManagedFieldsEntry) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.ManagedFieldsEntry) bool {
		return sameOwner(x, y) && x.APIVersion == y.APIVersion && x.FieldsType == y.FieldsType && bytes.Equal(rawOf(x), rawOf(y))
	})
}

func rawOf(e metav1.ManagedFieldsEntry) []byte {
	if e.FieldsV1 == nil {
		return nil
	}
	return e.FieldsV1.GetRawBytes()
}

// pair draws two values of one type beside each other: the shape of both, and
// where both have something, whether it is the same. false as add's.
func (l *layout) pair(s *sketch, x, y reflect.Value) bool {
	switch l.draws {
	case scalar:
		s.bit(!x.IsZero())
		s.bit(!y.IsZero())
		s.bit(x.Equal(y))
	case self:
		s.bit(isZero(x))
		s.bit(isZero(y))
		return s.alike(x, y)
	case pointer:
		s.bit(!x.IsNil())
		s.bit(!y.IsNil())
		switch {
		case !x.IsNil() && !y.IsNil():
			return l.elem.pair(s, x.Elem(), y.Elem())
		case !x.IsNil():
			return l.elem.add(s, x.Elem())
		case !y.IsNil():
			return l.elem.add(s, y.Elem())
		}
	case members:
		for i := range l.members {
			m := &l.members[i]
			if !m.layout.pair(s, x.Field(m.index), y.Field(m.index)) {
				return false
			}
		}
	case leaf:
		for _, v := range []reflect.Value{x, y} {
			s.bit(v.IsNil())
			s.bit(v.Len() == 0)
		}
		return s.alike(x, y)
	case keyed:
		return l.pairItems(s, x, y)
	case valued:
		return l.add(s, x) && l.add(s, y)
	case mapped:
		return l.pairMaps(s, x, y)
	case unknown:
		return x.IsZero() && y.IsZero()
	}
	return true
}

// alike draws whether two values are written alike.
func (s *sketch) alike(x, y reflect.Value) bool {
	same := reflect.DeepEqual(x.Interface(), y.Interface())
	if !same {
		a, err1 := json.Marshal(x.Interface())
		b, err2 := json.Marshal(y.Interface())
		if err1 != nil || err2 != nil {
			return false
		}
		same = bytes.Equal(a, b)
	}
	s.bit(same)
	return true
}

// pairItems pairs the items of two lists by their keys.
func (l *layout) pairItems(s *sketch, x, y reflect.Value) bool {
	l.count(s, x)
	l.count(s, y)
	before, after := l.index(x), l.index(y)
	found := 0
	for i := range y.Len() {
		item := y.Index(i)
		if after.find(item) != i || !l.drawKey(s, item) {
			return false // twice, or without a part of its key: upstream has rules for these
		}
		at := before.find(item)
		s.number(uint64(at + 1)) //nolint:gosec // -1 at least
		if at < 0 {
			if !l.elem.add(s, item) {
				return false
			}
			continue
		}
		found++
		if !l.elem.pair(s, x.Index(at), item) {
			return false
		}
	}
	if found == x.Len() {
		return true
	}
	for i := range x.Len() {
		item := x.Index(i)
		if after.find(item) >= 0 {
			continue
		}
		if before.find(item) != i || !l.drawKey(s, item) || !l.elem.add(s, item) {
			return false
		}
	}
	return true
}

// short is how long a list is that is looked through more quickly than it is indexed.
const short = 32

// index finds the items of a list.
type index struct {
	*layout
	list reflect.Value
	at   map[[3]any]int // by their keys; nil = the list is looked through
}

func (l *layout) index(list reflect.Value) index {
	x := index{l, list, nil}
	if list.Len() <= short || len(l.keys) > len([3]any{}) {
		return x
	}
	x.at = make(map[[3]any]int, list.Len())
	for i := range list.Len() {
		key := l.key(list.Index(i))
		if _, twice := x.at[key]; !twice {
			x.at[key] = i
		}
	}
	return x
}

// find is the first item with the keys of another one; -1 = there is none.
func (x index) find(item reflect.Value) int {
	if x.at == nil {
		return x.layout.find(x.list, item)
	}
	if i, ok := x.at[x.key(item)]; ok {
		return i
	}
	return -1
}

// key has the values of an item's keys. Two are equal if sameKey says so of the items.
func (l *layout) key(item reflect.Value) (out [3]any) {
	for i, k := range l.keys {
		v := item.FieldByIndex(k.index)
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				continue
			}
			v = v.Elem()
		}
		out[i] = v.Interface()
	}
	return out
}

// find is the first item with the keys of another one.
func (l *layout) find(list, item reflect.Value) int {
	for i := range list.Len() {
		if l.sameKey(list.Index(i), item) {
			return i
		}
	}
	return -1
}

func (l *layout) sameKey(a, b reflect.Value) bool {
	for _, k := range l.keys {
		x, y := a.FieldByIndex(k.index), b.FieldByIndex(k.index)
		if x.Kind() == reflect.Pointer {
			if x.IsNil() || y.IsNil() {
				if x.IsNil() != y.IsNil() {
					return false
				}
				continue
			}
			x, y = x.Elem(), y.Elem()
		}
		if !x.Equal(y) {
			return false
		}
	}
	return true
}

// drawKey draws an item's key; false: a part of it is left open.
func (l *layout) drawKey(s *sketch, item reflect.Value) bool {
	for _, k := range l.keys {
		v := item.FieldByIndex(k.index)
		switch {
		case v.IsZero():
			return false
		case l.name > 0:
			return s.name(l.name, v.String())
		}
		s.value(v)
	}
	return true
}

func (l *layout) pairMaps(s *sketch, x, y reflect.Value) bool {
	l.count(s, x)
	l.count(s, y)
	keys := append(x.MapKeys(), y.MapKeys()...)
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	keys = slices.CompactFunc(keys, func(a, b reflect.Value) bool { return a.String() == b.String() })
	for _, k := range keys {
		was, is := x.MapIndex(k), y.MapIndex(k)
		s.text(k.String())
		s.bit(was.IsValid())
		s.bit(is.IsValid())
		ok := false
		switch {
		case !was.IsValid():
			ok = l.elem.add(s, is)
		case !is.IsValid():
			ok = l.elem.add(s, was)
		default:
			ok = l.elem.pair(s, was, is)
		}
		if !ok {
			return false
		}
	}
	return true
}
