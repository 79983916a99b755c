package admission

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/object"
)

// Equivalent is another name for the same stored objects.
type Equivalent struct {
	Resource schema.GroupVersionResource
	Kind     schema.GroupVersionKind
	// Codec of Kind, to convert to; nil: the object is the same in all of them, as
	// a Scale is.
	Codec object.Codec
}

// Resources tells which resources are one, in other versions or groups.
type Resources interface {
	Equivalents(gvr schema.GroupVersionResource, subresource string) []Equivalent
}
