// SPDX-License-Identifier: Apache-2.0

package matching

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
)

// View is the request's objects in one version. Nil where the request has none.
type View struct {
	Object, Old *object.Object
	Kind        schema.GroupVersionKind
	back        func(ctx context.Context, o *object.Object) (*object.Object, error) // nil: they are the request's own
	cel         *upstream.VersionedAttributes
	changes     int
}

// views of one request, by kind. An object that changed outdates them.
type views struct {
	mu   sync.Mutex
	made map[schema.GroupVersionKind]*View
	old  map[schema.GroupVersionKind]*object.Object
}

type viewsKey struct{}

func viewsOf(r *admission.Request) *views {
	return r.Memo(viewsKey{}, func() any {
		return &views{made: map[schema.GroupVersionKind]*View{}, old: map[schema.GroupVersionKind]*object.Object{}}
	}).(*views)
}

// In is the request's objects as t names them, converted once for all who ask
// while nobody changes the object.
func (t Target) In(ctx context.Context, r *admission.Request) (*View, error) {
	all := viewsOf(r)
	all.mu.Lock()
	defer all.mu.Unlock()
	changes := 0
	if r.Object != nil {
		changes = r.Object.Changes()
	}
	if v := all.made[t.Kind]; v != nil && v.changes == changes {
		return v, nil
	}
	v := &View{Kind: t.Kind, back: t.back, changes: changes}
	var err error
	if v.Object, err = t.converted(ctx, r.Object); err != nil {
		return nil, err
	}
	if v.Old = all.old[t.Kind]; v.Old == nil {
		if v.Old, err = t.converted(ctx, r.OldObject); err != nil {
			return nil, err
		}
		all.old[t.Kind] = v.Old
	}
	all.made[t.Kind] = v
	return v, nil
}

func (t Target) converted(ctx context.Context, o *object.Object) (*object.Object, error) {
	if o == nil || t.convert == nil || o.Kind() == t.Kind {
		return o, nil
	}
	// A conversion may share memory with what it was given, and the view may be
	// changed by nobody: patches are applied to copies.
	return t.convert(ctx, o)
}

// Set replaces the request's object by next, which is of the view's version.
func (v *View) Set(ctx context.Context, r *admission.Request, next runtime.Object) error {
	if v.Object != r.Object && v.back != nil {
		back, err := v.back(ctx, object.FromVersioned(v.Object.Codec(), next))
		if err != nil {
			return err
		}
		if next, err = back.Versioned(); err != nil {
			return err
		}
	}
	r.Object.SetVersioned(next)
	return nil
}

// CEL is the view as expressions see it. It is for one goroutine at a time.
func (v *View) CEL(r *admission.Request) (*upstream.VersionedAttributes, error) {
	if v.cel != nil {
		return v.cel, nil
	}
	obj, err := Typed(v.Object)
	if err != nil {
		return nil, err
	}
	old, err := Typed(v.Old)
	if err != nil {
		return nil, err
	}
	out := &upstream.VersionedAttributes{
		Attributes: upstream.NewAttributesRecord(obj, old, r.Kind, Namespace(r), r.Name, r.Resource, r.Subresource,
			upstream.Operation(r.Operation), r.Options, r.DryRun, r.User),
		VersionedKind: v.Kind,
	}
	if old != nil {
		out.VersionedOldObject.Set(old)
	}
	if obj != nil {
		out.VersionedObject.Set(obj)
	}
	v.cel = out
	return out, nil
}

// Typed is the versioned object with its kind set; nil for nil.
func Typed(o *object.Object) (runtime.Object, error) {
	if o == nil {
		return nil, nil
	}
	return o.Named()
}
