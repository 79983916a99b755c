// SPDX-License-Identifier: Apache-2.0

package customresource

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/singleflight"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/ownership"
	"github.com/wasmplane/wasmplane/core/object"
)

// Convert implements api.Custom.
func (d *definition) Convert(ctx context.Context, objects []*object.Object, to string) ([]*object.Object, error) {
	target, ok := d.versions[to]
	if !ok {
		return nil, fmt.Errorf("request to convert CR to an invalid group/version: %s", d.gv(to))
	}
	out := make([]*object.Object, len(objects))
	var missing []int
	for i, o := range objects {
		var err error
		if out[i], err = d.known(o, target); err != nil {
			return nil, err
		}
		if out[i] == nil {
			missing = append(missing, i)
		}
	}
	switch len(missing) {
	case 0:
		return out, nil
	case 1:
		one, err := d.convertOne(ctx, objects[missing[0]], target)
		out[missing[0]] = one
		return out, err
	}
	from := make([]*object.Object, len(missing))
	for i, at := range missing {
		from[i] = objects[at]
	}
	converted, err := d.convertAll(ctx, from, target)
	if err != nil {
		return nil, err
	}
	for i, at := range missing {
		out[at] = converted[i]
	}
	return out, nil
}

// known is an object in a version where nobody has to be asked to convert it;
// nil where somebody has.
func (d *definition) known(o *object.Object, target *customVersion) (*object.Object, error) {
	if o.Codec() == object.Codec(target.codec) {
		return o, nil
	}
	if view := o.View(target.codec); view != nil {
		return view, nil
	}
	if o.Kind().Version != target.spec.Name {
		return nil, nil //nolint:nilnil // it has to be converted
	}
	return d.prepared(o)
}

// prepared is a stored object as its own version's schema has it. It shares what
// was stored where the schema changes nothing.
func (d *definition) prepared(o *object.Object) (*object.Object, error) {
	v, ok := d.versions[o.Kind().Version]
	if !ok {
		return nil, fmt.Errorf("request to convert CR from an invalid group/version: %s", o.Kind().GroupVersion())
	}
	if o.Codec() == object.Codec(v.codec) {
		return o, nil
	}
	if view := o.View(v.codec); view != nil {
		return view, nil
	}
	own, err := o.Copy()
	if err != nil {
		return nil, err
	}
	next, err := tree(own)
	if err != nil {
		return nil, err
	}
	if _, err := v.coerce(next, coercing{stored: true}); err != nil {
		return nil, fmt.Errorf("stored %s %s/%s: %w", d.kind, next.GetNamespace(), next.GetName(), err)
	}
	v.fill(next)
	same, err := isOf(next, o)
	if err != nil {
		return nil, err
	}
	view := api.PackableCustom(v.codec, next)
	if same {
		if view, err = o.As(v.codec); err != nil {
			return nil, err
		}
	}
	return view, o.KeepView(d, v.codec, view)
}

// isOf says whether a tree is what an object is. Of a packed one the bytes tell, so that
// nothing is decoded to be compared.
func isOf(u *unstructured.Unstructured, o *object.Object) (bool, error) {
	if packed := o.Packed(object.JSON); packed != nil {
		data, err := api.EncodeCustom(u.Object)
		return bytes.Equal(data, packed), err
	}
	stored, err := tree(o)
	if err != nil {
		return false, err
	}
	return apiequality.Semantic.DeepEqual(u.Object, stored.Object), nil
}

func tree(o *object.Object) (*unstructured.Unstructured, error) {
	versioned, err := o.Versioned()
	if err != nil {
		return nil, err
	}
	u, ok := versioned.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("a %T is no custom resource", versioned)
	}
	return u, nil
}

// convertOne converts one object once, however many watchers want it at the
// moment: a webhook is called once for an event and not once for a watcher.
func (d *definition) convertOne(ctx context.Context, o *object.Object, target *customVersion) (*object.Object, error) {
	key := fmt.Sprintf("%p %s", o, target.spec.Name)
	// It goes on when the first of those who wait has gone; converters have a
	// time limit of their own.
	flight := d.flights.DoChan(key, func() (any, error) {
		all, err := d.convertAll(context.WithoutCancel(ctx), []*object.Object{o}, target)
		if err != nil {
			return nil, err
		}
		return all[0], nil
	})
	var result singleflight.Result
	select {
	case result = <-flight:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if result.Err != nil {
		return nil, result.Err
	}
	converted, ok := result.Val.(*object.Object)
	if !ok {
		return nil, errors.New("the conversion answered no object")
	}
	return converted, nil
}

// convertAll asks the converter about all objects at once. They are in other
// versions than target.
func (d *definition) convertAll(ctx context.Context, objects []*object.Object, target *customVersion) ([]*object.Object, error) {
	from := make([]*unstructured.Unstructured, len(objects))
	for i, o := range objects {
		p, err := d.prepared(o)
		if err != nil {
			return nil, err
		}
		if from[i], err = tree(p); err != nil {
			return nil, err
		}
	}
	converted, err := d.convertTrees(ctx, from, target)
	if err != nil {
		return nil, err
	}
	out := make([]*object.Object, len(converted))
	for i, u := range converted {
		out[i] = api.PackableCustom(target.codec, u)
		if err := objects[i].KeepView(d, target.codec, out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// convertTrees converts and prunes by the target's schema. Defaults are not
// filled in: those of the version that was read have been.
func (d *definition) convertTrees(ctx context.Context, from []*unstructured.Unstructured,
	target *customVersion,
) ([]*unstructured.Unstructured, error) {
	for _, u := range from {
		if gv := u.GroupVersionKind().GroupVersion(); gv.Group != d.gr.Group || d.versions[gv.Version] == nil {
			return nil, fmt.Errorf("request to convert CR from an invalid group/version: %s", gv)
		}
	}
	c, err := d.converter()
	if err != nil {
		return nil, err
	}
	out, err := c.Convert(ctx, from, d.gv(target.spec.Name))
	if err != nil {
		return nil, err
	}
	for _, u := range out {
		if _, err := target.coerce(u, coercing{}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// EncodeStorage implements api.Custom.
func (d *definition) EncodeStorage(ctx context.Context, o runtime.Object) ([]byte, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("a %T is no custom resource", o)
	}
	target := d.versions[d.storage]
	if u.GroupVersionKind().Version == d.storage {
		u = u.DeepCopy()
		if _, err := target.coerce(u, coercing{}); err != nil {
			return nil, err
		}
		return api.EncodeCustom(u.Object)
	}
	converted, err := d.convertTrees(ctx, []*unstructured.Unstructured{u}, target)
	if err != nil {
		return nil, err
	}
	return api.EncodeCustom(converted[0].Object)
}

// Types implements api.Custom.
func (d *definition) Types() (managedfields.TypeConverter, error) { return d.types() }

// FieldManager implements api.Custom. It is made for each write: what is
// expensive, the schema, is made once.
func (d *definition) FieldManager(ctx context.Context, v, subresource string) (ownership.Upstream, error) {
	known, ok := d.versions[v]
	if !ok {
		return nil, fmt.Errorf("%s has no version %q", d.gr, v)
	}
	types, err := d.types()
	if err != nil {
		return nil, err
	}
	resets, err := d.resets(known, subresource)
	if err != nil {
		return nil, err
	}
	c := converterOf{ctx: ctx, def: d}
	fm, err := managedfields.NewDefaultCRDFieldManager(types, c, c, creator{}, known.codec.gvk, d.gv(v), subresource,
		fieldpath.NewExcludeFilterSetMap(resets))
	if err != nil {
		return nil, fmt.Errorf("field manager of %s in %s: %w", d.gr, v, err)
	}
	return ownership.Bound(fm), nil
}

// resets are the fields that a write cannot set: of its own version for the
// object, of all versions for the status.
func (d *definition) resets(v *customVersion, subresource string) (map[fieldpath.APIVersion]*fieldpath.Set, error) {
	out := map[fieldpath.APIVersion]*fieldpath.Set{}
	versions := map[string]*customVersion{v.spec.Name: v}
	if subresource == "status" {
		versions = d.versions
	}
	for _, one := range versions {
		compiled, err := one.compiled()
		if err != nil {
			return nil, err
		}
		strategy := compiled.Strategy
		if subresource == "status" {
			strategy = compiled.Status
		}
		if m, ok := strategy.(managed); ok {
			for gv, set := range m.GetResetFields() {
				out[gv] = set
			}
		}
	}
	return out, nil
}

// converterOf is a definition as field management sees it, for one write. Its
// interface has no room for a context, so the write's is kept here, no longer
// than the write lasts.
type converterOf struct {
	ctx context.Context //nolint:containedctx // see above
	def *definition
}

// Convert implements runtime.ObjectConvertor.
func (c converterOf) Convert(in, out, _ any) error {
	to, ok := out.(*unstructured.Unstructured)
	from, fromOK := in.(runtime.Object)
	if !ok || !fromOK {
		return fmt.Errorf("cannot convert a %T to a %T", in, out)
	}
	converted, err := c.ConvertToVersion(from, to.GroupVersionKind().GroupVersion())
	if err != nil {
		return err
	}
	u, ok := converted.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("a %T is no custom resource", converted)
	}
	to.Object = u.Object
	return nil
}

// ConvertToVersion implements runtime.ObjectConvertor. A version that is no more
// is told as such: its managers are then forgotten.
func (c converterOf) ConvertToVersion(in runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	u, ok := in.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("a %T is no custom resource", in)
	}
	from := u.GroupVersionKind()
	gvk, ok := to.KindForGroupVersionKinds([]schema.GroupVersionKind{from})
	if !ok {
		return nil, fmt.Errorf("%v is unstructured and is not suitable for converting to %q", from, to)
	}
	if gvk.Version == from.Version {
		return u.DeepCopy(), nil
	}
	target, ok := c.def.versions[gvk.Version]
	if !ok {
		return nil, runtime.NewNotRegisteredErrForKind(c.def.crd.Name, gvk)
	}
	converted, err := c.def.convertTrees(c.ctx, []*unstructured.Unstructured{u}, target)
	if err != nil {
		return nil, err
	}
	return converted[0], nil
}

// ConvertFieldLabel implements runtime.ObjectConvertor.
func (c converterOf) ConvertFieldLabel(gvk schema.GroupVersionKind, label, value string) (ownLabel, ownValue string, err error) {
	if v, ok := c.def.versions[gvk.Version]; ok {
		for _, known := range v.selectable() {
			if label == known {
				return label, value, nil
			}
		}
	}
	return "", "", fmt.Errorf("field label not supported: %s", strings.TrimSpace(label))
}

// Default implements runtime.ObjectDefaulter.
func (c converterOf) Default(o runtime.Object) {
	if u, ok := o.(*unstructured.Unstructured); ok {
		if v, known := c.def.versions[u.GroupVersionKind().Version]; known {
			v.fill(u)
		}
	}
}
