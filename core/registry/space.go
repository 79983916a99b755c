// SPDX-License-Identifier: Apache-2.0

package registry

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/registry/reserve"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// Space says whether there is room for a write in the store.
type Space interface {
	// Admit answers a *store.FullError, or what is to be called with the revision at which the write was done; 0 = it was not.
	Admit(w store.Write) (done func(revision int64), err error)
}

// room asks for room for the value of a write. old is what the value replaces, nil
// where it makes something new. It must be the snapshot of the write and not the
// cache's present one: the cache may be behind, and an object that is marked as
// deleted already would be granted the growth of its mark once more.
func (w *write) room(internal runtime.Object, value []byte, old *watchcache.Item) (done func(revision int64), err error) {
	if w.r.cfg.Space == nil {
		return func(int64) {}, nil
	}
	m, err := meta.Accessor(internal)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	before, deleting := 0, false
	if old != nil {
		before = old.Size()
		if was, err := old.Object.Meta(); err == nil {
			deleting = was.GetDeletionTimestamp() != nil
		}
	}
	return w.r.cfg.Space.Admit(store.Write{
		Namespace: m.GetNamespace(), Bytes: len(value), Before: before,
		Reserved: w.reserved(reserve.Write{Deleting: m.GetDeletionTimestamp() != nil, WasDeleting: deleting, Bytes: len(value), Before: before}),
	})
}

// reserved says whether the write may use what a full store keeps back.
func (w *write) reserved(of reserve.Write) bool {
	if w.req == nil { // the server's own change of an object that is there
		return true
	}
	of.User, of.Resource, of.Subresource = w.req.User, w.r.res.GroupResource, w.req.Subresource
	return of.Granted(w.r.cfg.Administrators)
}
