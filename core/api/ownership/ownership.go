// SPDX-License-Identifier: Apache-2.0

// Package ownership writes the managed fields of objects of built-in types: who
// set what. The rules are upstream's (structured-merge-diff, and the managers of
// apimachinery around it), and so is every result, byte for byte. What is its own
// is how little it asks of them:
//
//   - Which fields a create sets depends on the object's shape alone: which members
//     it has, which keys its maps and lists have, not on their values. Shapes repeat
//     (pods of a Deployment, events, leases), so what upstream's code made of a shape is kept.
//   - An update compares only what has changed: members that are the same in both
//     objects are left out of the copies that upstream's code compares. And what comes
//     of that depends on their shapes and on what differs in them, not on values either.
//
// Applies go to upstream's code as they are.
package ownership

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/wasmplane/wasmplane/core/structural"
)

// Upstream is what *managedfields.FieldManager does.
type Upstream interface {
	UpdateNoErrors(live, next runtime.Object, manager string) runtime.Object
	Apply(live, applied runtime.Object, manager string, force bool) (runtime.Object, error)
}

// Config of a Manager.
type Config struct {
	Upstream Upstream
	Types    managedfields.TypeConverter
	Kind     schema.GroupVersionKind
	// Subresource that the upstream manager was made for; "" = the object itself.
	Subresource string
	// Empty is an object of the kind with nothing but its kind set. It is not changed.
	Empty runtime.Object
	// Structure is shared by all managers.
	Structure *structural.Types
}

// Manager manages the fields of one version of one resource. It is safe for
// concurrent use.
type Manager struct {
	cfg     Config
	layout  func() *layout // nil: the schema does not describe the type
	shapes  shapes[fieldSet]
	updates shapes[outcome]
}

// New makes a manager; the layout of its type is found out at the first create.
func New(cfg Config) *Manager {
	m := &Manager{cfg: cfg}
	m.layout = sync.OnceValue(func() *layout {
		t, err := cfg.Types.ObjectToTyped(cfg.Empty, typed.AllowDuplicates)
		if err != nil {
			return nil
		}
		return newLayout(t.Schema(), reflect.TypeOf(cfg.Empty).Elem(), t.TypeRef())
	})
	return m
}

// Apply implements Upstream.
func (m *Manager) Apply(live, applied runtime.Object, manager string, force bool) (runtime.Object, error) {
	return m.cfg.Upstream.Apply(live, applied, manager, force)
}

// Create is UpdateNoErrors of an object that did not exist.
func (m *Manager) Create(next runtime.Object, manager string) runtime.Object {
	access, err := meta.Accessor(next)
	if err != nil || !m.plain(next, access.GetManagedFields(), manager) {
		return m.cfg.Upstream.UpdateNoErrors(m.cfg.Empty, next, manager)
	}
	access.SetManagedFields(nil)
	s := sketchPool.Get().(*sketch)
	defer sketchPool.Put(s)
	if !m.layout().draw(s, reflect.ValueOf(next).Elem()) {
		return m.cfg.Upstream.UpdateNoErrors(m.cfg.Empty, next, manager)
	}
	owner := soleOwner(access)
	set, known := m.shapes.get(s.buf)
	if !known {
		next = m.cfg.Upstream.UpdateNoErrors(m.cfg.Empty, next, manager)
		if set, ok := m.setOf(next, owner); ok {
			m.shapes.put(s.buf, set)
		}
		return next
	}
	if manager == "" {
		manager = "unknown" // as upstream calls it
	}
	fields := &metav1.FieldsV1{}
	fields.SetRawBytes(set.text(owner))
	access.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: m.cfg.Kind.GroupVersion().String(),
		Time: &metav1.Time{Time: time.Now().UTC()}, FieldsType: "FieldsV1", FieldsV1: fields,
	}})
	return next
}

// plain says whether a create is one whose result depends on its shape alone.
func (m *Manager) plain(next runtime.Object, managed []metav1.ManagedFieldsEntry, manager string) bool {
	reset := len(managed) == 0 || len(managed) == 1 && reflect.DeepEqual(managed[0], metav1.ManagedFieldsEntry{})
	return reset && utf8.ValidString(manager) && reflect.TypeOf(next) == reflect.TypeOf(m.cfg.Empty) &&
		next.GetObjectKind().GroupVersionKind() == m.cfg.Kind && m.layout() != nil
}

// fieldSet is what a create of some shape owns.
type fieldSet struct {
	// The encoded set, around the uid of the one owner where there is one: pods of
	// different ReplicaSets are of one shape.
	head, tail []byte
	owned      bool
}

func (f fieldSet) size() int { return len(f.head) + len(f.tail) }

func (f *fieldSet) text(owner string) []byte {
	if !f.owned {
		return f.head // shared: nobody changes encoded fields in place
	}
	text := make([]byte, 0, len(f.head)+len(owner)+len(f.tail))
	return append(append(append(text, f.head...), owner...), f.tail...)
}

// setOf takes out of a created object what upstream made of it.
func (m *Manager) setOf(o runtime.Object, owner string) (fieldSet, bool) {
	access, err := meta.Accessor(o)
	if err != nil {
		return fieldSet{}, false
	}
	managed := access.GetManagedFields()
	if len(managed) != 1 || managed[0].FieldsV1 == nil || managed[0].Subresource != "" {
		return fieldSet{}, false
	}
	raw := bytes.Clone(managed[0].FieldsV1.GetRawBytes())
	if owner == "" {
		return fieldSet{head: raw}, true
	}
	key := []byte(`k:{\"uid\":\"` + owner + `\"}`)
	i := bytes.Index(raw, key)
	if i < 0 || bytes.Count(raw, []byte(owner)) != 1 {
		return fieldSet{}, false
	}
	i += len(`k:{\"uid\":\"`)
	return fieldSet{head: raw[:i:i], tail: raw[i+len(owner):], owned: true}, true
}

// soleOwner is the uid of the only owner of an object, where it is such that it is
// written into JSON as it is; "" where its uid belongs to the shape.
func soleOwner(o metav1.Object) string {
	owners := o.GetOwnerReferences()
	if len(owners) != 1 || !simpleUID(string(owners[0].UID)) {
		return ""
	}
	return string(owners[0].UID)
}

func simpleUID(uid string) bool {
	// Short ones could be part of anything else in the set.
	return len(uid) >= 16 && len(uid) <= 64 && strings.IndexFunc(uid, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) < 0
}

// UpdateNoErrors implements Upstream.
func (m *Manager) UpdateNoErrors(live, next runtime.Object, manager string) runtime.Object {
	a, b, ok := m.pruned(live, next)
	if !ok {
		return m.cfg.Upstream.UpdateNoErrors(live, next, manager)
	}
	access, err := meta.Accessor(next)
	if err != nil {
		return m.cfg.Upstream.UpdateNoErrors(live, next, manager)
	}
	s := sketchPool.Get().(*sketch)
	defer sketchPool.Put(s)
	u, ok := m.known(s, a, b, manager)
	if ok {
		if entries, seen := u.outcome(); seen {
			access.SetManagedFields(entries)
			return next
		}
	}
	managed, err := meta.Accessor(m.cfg.Upstream.UpdateNoErrors(a, b, manager))
	if err != nil {
		return next
	}
	if ok {
		u.remember(managed.GetManagedFields())
	}
	access.SetManagedFields(managed.GetManagedFields())
	return next
}

// pruned are shallow copies of two objects without what is the same in both. It
// is not done where fields are owned in another version of the kind: conversion
// may read one field to write another.
func (m *Manager) pruned(live, next runtime.Object) (liveRest, nextRest runtime.Object, ok bool) {
	t := reflect.TypeOf(m.cfg.Empty)
	if reflect.TypeOf(live) != t || reflect.TypeOf(next) != t || !m.inVersion(live) || !m.inVersion(next) {
		return nil, nil, false
	}
	a, b := shallow(reflect.ValueOf(live)), shallow(reflect.ValueOf(next))
	prune(m.cfg.Structure.Of(t.Elem()), a.Elem(), b.Elem())
	x, okX := a.Interface().(runtime.Object)
	y, okY := b.Interface().(runtime.Object)
	return x, y, okX && okY
}

func (m *Manager) inVersion(o runtime.Object) bool {
	if o.GetObjectKind().GroupVersionKind() != m.cfg.Kind {
		return false
	}
	access, err := meta.Accessor(o)
	if err != nil {
		return false
	}
	version := m.cfg.Kind.GroupVersion().String()
	for _, e := range access.GetManagedFields() {
		if e.APIVersion != version {
			return false
		}
	}
	return true
}

func shallow(p reflect.Value) reflect.Value {
	c := reflect.New(p.Type().Elem())
	c.Elem().Set(p.Elem())
	return c
}

var (
	objectMeta = reflect.TypeFor[metav1.ObjectMeta]()
	typeMeta   = reflect.TypeFor[metav1.TypeMeta]()
)

// prune takes members out of both structs that are the same in both. Lists and
// maps that differ stay whole, and so does what identifies an object.
func prune(s *structural.Type, a, b reflect.Value) {
	for i := range s.Members {
		m := &s.Members[i]
		x, y := a.Field(m.Index), b.Field(m.Index)
		if x.Type() == objectMeta {
			pruneMeta(x, y)
			continue
		}
		if m.Name == "" && m.Type.Kind == reflect.Struct {
			if x.Type() != typeMeta {
				prune(m.Type, x, y)
			}
			continue
		}
		switch {
		case m.Type.Same(x, y):
			x.SetZero()
			y.SetZero()
		case m.Type.Own:
		case m.Type.Kind == reflect.Struct:
			prune(m.Type, x, y)
		case m.Type.Kind == reflect.Pointer && m.Type.Elem.Kind == reflect.Struct && !m.Type.Elem.Own && !x.IsNil() && !y.IsNil():
			x.Set(shallow(x))
			y.Set(shallow(y))
			prune(m.Type.Elem, x.Elem(), y.Elem())
		}
	}
}

func pruneMeta(x, y reflect.Value) {
	a, b := x.Addr().Interface().(*metav1.ObjectMeta), y.Addr().Interface().(*metav1.ObjectMeta)
	if sameMap(a.Labels, b.Labels) {
		a.Labels, b.Labels = nil, nil
	}
	if sameMap(a.Annotations, b.Annotations) {
		a.Annotations, b.Annotations = nil, nil
	}
	if len(a.OwnerReferences) > 0 && reflect.DeepEqual(a.OwnerReferences, b.OwnerReferences) {
		a.OwnerReferences, b.OwnerReferences = nil, nil
	}
}

func sameMap(a, b map[string]string) bool {
	if len(a) != len(b) || (a == nil) != (b == nil) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// Unchanging converts objects for upstream's manager, which copies each object
// that it compares, also one that has the wanted version already. It only reads
// them, so the copy is spared.
type Unchanging struct{ runtime.ObjectConvertor }

// ConvertToVersion implements runtime.ObjectConvertor.
func (u Unchanging) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	want, ok := gv.(schema.GroupVersion)
	if _, untyped := in.(*unstructured.Unstructured); ok && !untyped && want.Version != runtime.APIVersionInternal {
		if kind := in.GetObjectKind().GroupVersionKind(); kind.Kind != "" && kind.GroupVersion() == want {
			return in, nil
		}
	}
	out, err := u.ObjectConvertor.ConvertToVersion(in, gv)
	if err != nil {
		return nil, err //nolint:wrapcheck // upstream tells kinds of errors apart
	}
	return out, nil
}

// String names the manager in logs.
func (m *Manager) String() string { return fmt.Sprintf("field manager of %s", m.cfg.Kind) }
