// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/object"
)

// Equivalent is another name for the same stored objects.
type Equivalent struct {
	Resource schema.GroupVersionResource
	Kind     schema.GroupVersionKind
	// Convert makes an object of Kind of one of another version, in a carrier of its
	// own; nil: the object is the same in all of them, as a Scale is.
	Convert func(ctx context.Context, o *object.Object) (*object.Object, error)
}

// Resources tells which resources are one, in other versions or groups. The list
// has the resource that was asked about as well.
type Resources interface {
	Equivalents(gvr schema.GroupVersionResource, subresource string) []Equivalent
}
