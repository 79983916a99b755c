package registry

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/object"
)

// change is a write of the server's own, without strategy or admission: f
// changes a copy of the newest state, in the storage version, and is called
// again where somebody else was faster. It answers what was stored, in that version.
func (r *Registry) change(ctx context.Context, namespace, name string, dryRun bool, f func(o runtime.Object) error) (*object.Object, error) {
	key, err := r.key(namespace, name)
	if err != nil {
		return nil, err
	}
	result, err := r.onLive(ctx, key, func(ctx context.Context, l live) (Result, error) {
		if l.item == nil {
			return Result{}, apierrors.NewNotFound(r.res.GroupResource, name)
		}
		versioned, err := l.item.Object.Versioned()
		if err != nil {
			return Result{}, apierrors.NewInternalError(err)
		}
		next := versioned.DeepCopyObject()
		if err := f(next); err != nil {
			return Result{}, err
		}
		w := &write{r: r, key: key, codec: r.res.StorageCodec(), opts: writeOptions{dryRun: dryRun}}
		return w.store(ctx, object.FromVersioned(w.codec, next), l.item.Revision)
	})
	return result.Object, err
}

// checkPreconditions holds an object against what a client demands of it.
func (r *Registry) checkPreconditions(m metav1.Object, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	if p.UID != nil && *p.UID != "" && *p.UID != m.GetUID() {
		return r.conflict(m.GetName(), "Precondition failed: UID in precondition: "+string(*p.UID)+", UID in object meta: "+string(m.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != "" && *p.ResourceVersion != m.GetResourceVersion() {
		return r.conflict(m.GetName(), "Precondition failed: ResourceVersion in precondition: "+*p.ResourceVersion+", ResourceVersion in object meta: "+m.GetResourceVersion())
	}
	return nil
}
