package registry

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/watchcache"
)

// allocations gives Services their addresses and ports.
type allocations struct{ set *Set }

func newAllocations(s *Set) *allocations { return &allocations{set: s} }

func (a *allocations) create(context.Context, *write, runtime.Object) (undo func(context.Context), err error) {
	return func(context.Context) {}, nil
}

func (a *allocations) update(context.Context, *write, runtime.Object, runtime.Object) error {
	return nil
}

func (a *allocations) deleted(context.Context, *Registry, *watchcache.Item) {}
