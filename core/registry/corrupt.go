package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/wasmplane/wasmplane/core/store"
)

// corrupt answers a read of one object whose value nobody can read, in
// upstream's words: it names the key, so that somebody can delete it.
func corrupt(e *store.CorruptError) error {
	return apierrors.NewInternalError(storage.NewCorruptObjError(e.Key, unkeyed(e)))
}

// unkeyed is the error without the key, which the words around it name.
func unkeyed(e *store.CorruptError) error {
	what := "data from the storage is not transformable"
	if e.Undecodable {
		what = "object not decodable"
	}
	return fmt.Errorf("%s revision=%d: %w", what, e.Revision, e.Err)
}

// unlistable fails a list or watch that would be without objects that nobody can
// read. A list that leaves them out looks whole: controllers would take what
// belongs to them for orphaned.
func (r *Registry) unlistable(errs []error) error {
	causes := make([]metav1.StatusCause, 0, len(errs))
	for _, err := range errs {
		cause := metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse, Message: err.Error()}
		var e *store.CorruptError
		if errors.As(err, &e) {
			cause.Field, cause.Message = e.Key, storage.NewCorruptObjError(e.Key, unkeyed(e)).Error()
		}
		causes = append(causes, cause)
	}
	message := fmt.Sprintf("failed to read one or more %s from the storage: %s", r.res.GroupResource, causes[0].Message)
	if more := len(causes) - 1; more > 0 {
		message = fmt.Sprintf("%s (and %d more)", message, more)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError, Message: message,
		Details: &metav1.StatusDetails{Group: r.res.Group, Kind: r.res.GroupResource.Resource, Name: "list", Causes: causes},
	}}
}

// Unsafe says whether a delete asks for an object to be deleted unread.
func Unsafe(options runtime.Object) bool {
	o, ok := options.(*metav1.DeleteOptions)
	return ok && o.IgnoreStoreReadErrorWithClusterBreakingPotential != nil && *o.IgnoreStoreReadErrorWithClusterBreakingPotential
}

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
	key, err := r.key(req.Namespace, req.Name)
	if err != nil {
		return Result{}, err
	}
	for n := 1; ; n++ {
		revision, err := r.unreadRevision(ctx, key, req.Name)
		if err != nil {
			return Result{}, err
		}
		if !optionsOf(req.Options).isDryRun() {
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
			return Result{}, r.conflict(req.Name, optimisticLock)
		default:
			return Result{}, r.storeError(err, "delete", req.Name)
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
		return 0, r.storeError(err, "delete", name)
	}
	if _, _, _, err := r.decode(kv.Key, kv.Value, kv.ModRevision); err != nil {
		return kv.ModRevision, nil //nolint:nilerr // that it cannot be read is what was asked for
	}
	return 0, apierrors.NewConflict(r.res.GroupResource, name,
		storage.NewInvalidObjError(key, "unsafe deletion is not allowed because the object is decodable from storage"))
}
