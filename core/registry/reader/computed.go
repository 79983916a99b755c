// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/watchcache"
	"github.com/wasmplane/wasmplane/core/watchcache/pairs"
)

// Computed makes the objects of a resource that is stored nowhere: those of a
// namespace ("" = all) that a selector matches, or where name is not empty the one
// that has it. They are of the resource's preferred version, with their kind set.
type Computed func(ctx context.Context, namespace, name string, selector labels.Selector) ([]runtime.Object, error)

// compute makes the items of a list or, with a name, of a get.
func (r *Reader) compute(ctx context.Context, q Query, o ListOptions) ([]*watchcache.Item, error) {
	from, ok := r.cfg.Computed[r.res.GroupResource]
	if !ok {
		return r.components(ctx, q)
	}
	selector, err := r.cfg.Contract.FieldSelector(r.res, q.Version, o.Fields)
	if err != nil {
		return nil, err
	}
	byLabel := o.Labels
	if byLabel == nil {
		byLabel = labels.Everything()
	}
	objects, err := from(ctx, q.Namespace, q.Name, byLabel)
	if err != nil {
		return nil, err
	}
	items := make([]*watchcache.Item, 0, len(objects))
	for _, made := range objects {
		m, err := meta.Accessor(made)
		if err != nil {
			return nil, fmt.Errorf("compute %s: %w", r.res.GroupResource, err)
		}
		set := fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}
		if !selector.Matches(set) || o.Name != "" && o.Name != m.GetName() {
			continue
		}
		items = append(items, &watchcache.Item{
			Object: object.FromVersioned(r.res.Codec(q.Version), made), Labels: pairs.Of(m.GetLabels()), Fields: pairs.Of(set),
		})
	}
	return items, nil
}

// computed makes one object. Who asks for one that is not there learns of the kind,
// as upstream's servers have it: the resource has another's name.
func (r *Reader) computed(ctx context.Context, q Query) (*object.Object, error) {
	if _, ok := r.cfg.Computed[r.res.GroupResource]; !ok {
		return r.component(ctx, q)
	}
	items, err := r.compute(ctx, q, ListOptions{})
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		name := q.Name
		if q.Namespace != "" {
			name = q.Namespace + "/" + name
		}
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: r.res.Group, Resource: strings.ToLower(r.res.Kind)}, name)
	}
	return items[0].Object, nil
}
