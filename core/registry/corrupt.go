// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/wasmplane/wasmplane/core/registry/options"
	"github.com/wasmplane/wasmplane/core/registry/reader"
	"github.com/wasmplane/wasmplane/core/store"
)

// unsafeAttempts bounds how often an unsafe delete begins again because somebody
// has written the key meanwhile.
const unsafeAttempts = 5

// DeleteUnread deletes an object that cannot be read, and no other: no
// finalizer, no precondition and no admission can be asked about what nobody
// knows. Who may is for the caller to find out; Delete never does this, whatever
// its options say.
func (r *Registry) DeleteUnread(ctx context.Context, req *Request) (Result, error) {
	if r.res.Virtual {
		return Result{}, apierrors.NewMethodNotSupported(r.res.GroupResource, "delete")
	}
	key, err := r.reads.Key(req.Namespace, req.Name)
	if err != nil {
		return Result{}, err
	}
	for n := 1; ; n++ {
		revision, err := r.unreadRevision(ctx, key, req.Name)
		if err != nil {
			return Result{}, err
		}
		if !options.Of(req.Options).IsDryRun() {
			_, err = r.cfg.Store.Delete(ctx, key, revision)
		}
		var conflict *store.ConflictError
		var again *store.CorruptError // a conflict whose other value cannot be read either
		switch {
		case err == nil:
			return Result{Deleted: true, Status: &metav1.Status{
				Status: metav1.StatusSuccess, Code: http.StatusOK, Details: &metav1.StatusDetails{Name: req.Name, Kind: r.res.Kind},
			}}, nil
		case (errors.As(err, &conflict) || errors.As(err, &again)) && n < unsafeAttempts:
		case errors.As(err, &conflict):
			return Result{}, r.reads.Conflict(req.Name, reader.OptimisticLock)
		default:
			return Result{}, r.reads.StoreError(err, "delete", req.Name)
		}
	}
}

// unreadRevision is the revision of a value that cannot be read.
func (r *Registry) unreadRevision(ctx context.Context, key, name string) (int64, error) {
	kv, err := r.cfg.Store.Get(ctx, key)
	var unreadable *store.CorruptError
	if errors.As(err, &unreadable) {
		return unreadable.Revision, nil
	}
	if err != nil {
		return 0, r.reads.StoreError(err, "delete", name)
	}
	if _, _, _, err := r.decode(kv.Key, kv.Value, kv.ModRevision); err != nil {
		return kv.ModRevision, nil //nolint:nilerr // that it cannot be read is what was asked for
	}
	return 0, apierrors.NewConflict(r.res.GroupResource, name,
		storage.NewInvalidObjError(key, "unsafe deletion is not allowed because the object is decodable from storage"))
}
