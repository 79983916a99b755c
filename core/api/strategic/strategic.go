// SPDX-License-Identifier: Apache-2.0

// Package strategic applies strategic merge patches.
package strategic

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/wasmplane/wasmplane/core/structural"
)

// Merger applies strategic merge patches to objects of one version of a kind.
type Merger struct {
	Kind      schema.GroupVersionKind
	Type      reflect.Type // of its objects: the struct
	Structure *structural.Type
	Strict    bool // fields that the kind does not have are wanted
}

// Merge patches an object, which it leaves as it is. The answer is the caller's, and is not
// defaulted. unknown lists the fields that the kind does not have, where they are wanted.
//
// What is merged are JSON trees. Only those members of the object become one
// that the patch names: a patch of a pod's status says nothing of its spec, and
// turning that into a tree and back is most of what the patch would cost.
func (m *Merger) Merge(live runtime.Object, patch map[string]any) (o runtime.Object, unknown []error, err error) {
	if spots, ok := m.Spots(live, patch); ok {
		return m.parts(reflect.ValueOf(live).Elem(), spots, patch)
	}
	return m.MergeWhole(live, patch)
}

// Spots are the members of an object that a patch has something to say about; ok = false:
// it has to be merged with the whole object.
func (m *Merger) Spots(live runtime.Object, patch map[string]any) (spots []Spot, ok bool) {
	if reflect.TypeOf(live) != reflect.PointerTo(m.Type) {
		return nil, false
	}
	return named(nil, nil, m.Structure, reflect.ValueOf(live).Elem(), patch)
}

func (m *Merger) empty() runtime.Object { return reflect.New(m.Type).Interface().(runtime.Object) }

// MergeWhole is Merge by way of the whole object's tree.
func (m *Merger) MergeWhole(live runtime.Object, patch map[string]any) (runtime.Object, []error, error) {
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(live)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	merged, err := mergeTrees(before, patch, m.empty())
	switch {
	case apierrors.IsRequestEntityTooLargeError(err):
		return nil, nil, err
	case errors.Is(err, mergepatch.ErrNoListOfLists), errors.Is(err, mergepatch.ErrPatchContentNotMatchRetainKeys):
		return nil, nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	case err != nil:
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	after := m.empty()
	after.GetObjectKind().SetGroupVersionKind(m.Kind)
	var unknown []error
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(merged, after, m.Strict); err != nil {
		fields, ok := runtime.AsStrictDecodingError(err)
		if !ok {
			return nil, nil, apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
				field.Invalid(field.NewPath("patch"), fmt.Sprintf("%+v", patch), err.Error()),
			})
		}
		unknown = fields.Errors()
	}
	return after, unknown, nil
}

// parts patches an object that has nothing but the named spots of live, and puts
// what comes of them into a copy of the rest of live.
func (m *Merger) parts(live reflect.Value, spots []Spot, patch map[string]any) (runtime.Object, []error, error) {
	few, rest := reflect.New(m.Type), reflect.New(m.Type)
	rest.Elem().Set(live)
	for _, p := range spots {
		p.copyTo(few.Elem(), live)
		p.clear(rest.Elem(), live)
	}
	after, unknown, err := m.MergeWhole(few.Interface().(runtime.Object), patch)
	if err != nil {
		return nil, nil, err
	}
	out := rest.Interface().(runtime.Object).DeepCopyObject()
	for _, p := range spots {
		p.copyTo(reflect.ValueOf(out).Elem(), reflect.ValueOf(after).Elem())
	}
	out.GetObjectKind().SetGroupVersionKind(m.Kind)
	return out, unknown, nil
}

// Spot leads from an object to a member of it: indexes of fields, through
// structs and pointers to structs.
type Spot []int

// named appends the spots that a patch has something to say about. It gives up
// at what is not simply a member with a value: directives, which are about the
// whole struct that they stand in, and members that the struct does not have.
func named(spots []Spot, above Spot, s *structural.Type, v reflect.Value, patch map[string]any) ([]Spot, bool) {
	for key, value := range patch {
		m := memberNamed(s, key)
		if m == nil || strings.HasPrefix(key, "$") {
			return nil, false
		}
		here := append(above[:len(above):len(above)], m.Index)
		if below, ok := value.(map[string]any); ok && v.Type().Field(m.Index).Tag.Get("patchStrategy") == "" {
			inner, at := m.Type, v.Field(m.Index)
			if inner.Kind == reflect.Pointer && !at.IsNil() {
				inner, at = inner.Elem, at.Elem()
			}
			if inner.Kind == reflect.Struct && !inner.Own {
				if more, ok := named(spots, here, inner, at, below); ok {
					spots = more
					continue
				}
			}
		}
		spots = append(spots, here)
	}
	return spots, true
}

func memberNamed(s *structural.Type, name string) *structural.Member {
	for i := range s.Members {
		if s.Members[i].Name == name && name != "" {
			return &s.Members[i]
		}
	}
	return nil
}

// copyTo sets the spot in one object to what it is in another, making the
// structs that lead to it. Where these are missing in from, nothing is there.
func (p Spot) copyTo(to, from reflect.Value) {
	for _, i := range p {
		if to.Kind() == reflect.Pointer {
			if to.IsNil() {
				to.Set(reflect.New(to.Type().Elem()))
			}
			to = to.Elem()
		}
		if to = to.Field(i); !from.IsValid() {
			continue
		}
		if from.Kind() == reflect.Pointer {
			if from = from.Elem(); !from.IsValid() {
				continue
			}
		}
		from = from.Field(i)
	}
	if from.IsValid() {
		to.Set(from)
	} else {
		to.SetZero()
	}
}

// clear empties the spot in a shallow copy of live, whose structs on the way it
// copies first.
func (p Spot) clear(copied, live reflect.Value) {
	for _, i := range p {
		if copied.Kind() == reflect.Pointer {
			if copied.UnsafePointer() == live.UnsafePointer() {
				own := reflect.New(live.Type().Elem())
				own.Elem().Set(live.Elem())
				copied.Set(own)
			}
			copied, live = copied.Elem(), live.Elem()
		}
		copied, live = copied.Field(i), live.Field(i)
	}
	copied.SetZero()
}
