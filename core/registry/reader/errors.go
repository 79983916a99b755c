// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// OptimisticLock is what a client reads whose resourceVersion is not the newest.
const OptimisticLock = "the object has been modified; please apply your changes to the latest version and try again"

// Conflict refuses a write of an object.
func (r *Reader) Conflict(name, message string) error {
	return apierrors.NewConflict(r.res.GroupResource, name, errors.New(message))
}

// StoreError maps what the store and the cache report to API errors.
// Conflicts are not among them: callers try again.
func (r *Reader) StoreError(err error, verb, name string) error {
	var conflict *store.ConflictError
	var fence *store.FenceError
	var unreadable *store.CorruptError
	var status apierrors.APIStatus
	switch {
	case err == nil, errors.As(err, &conflict), errors.As(err, &fence), errors.As(err, &status):
		return err
	case errors.As(err, &unreadable):
		return corrupt(unreadable)
	case errors.Is(err, store.ErrNotFound):
		return apierrors.NewNotFound(r.res.GroupResource, name)
	case errors.Is(err, store.ErrCompacted), errors.Is(err, watchcache.ErrTooOld):
		return apierrors.NewResourceExpired("The resourceVersion for the provided " + verb + " is too old.")
	case errors.Is(err, store.ErrFull):
		return r.full(err, name)
	case errors.Is(err, store.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s %q is larger than what the store takes", r.res.GroupResource, name))
	case errors.Is(err, store.ErrUnavailable):
		// A write may have gone through all the same; clients find out by reading.
		return withheld{apierrors.NewServiceUnavailable(fmt.Sprintf("%s %s: the store is unavailable, has no leader, or answered too late; try again in a moment", verb, r.res.GroupResource)), err}
	case errors.Is(err, watchcache.ErrStopped):
		return apierrors.NewNotFound(r.res.GroupResource, name)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return apierrors.NewTimeoutError(fmt.Sprintf("%s of %s: the request did not complete within the allotted timeout", verb,
			r.res.GroupResource), 0)
	}
	return withheld{
		apierrors.NewInternalError(fmt.Errorf("%s %s: the store failed; the server's log says why", verb, r.res.GroupResource)),
		err,
	}
}

// withheld is a failure of the store. Its cause names files of the server, and addresses of stores,
// which are in the log, and no client's business.
type withheld struct {
	*apierrors.StatusError
	cause error
}

// LogValue implements slog.LogValuer.
func (w withheld) LogValue() slog.Value { return slog.StringValue(w.Error() + ": " + w.cause.Error()) }

// Unwrap has errors.As find the status, and nothing find the cause.
func (w withheld) Unwrap() error { return w.StatusError }

// tooLarge answers a read whose resourceVersion does not exist yet.
func tooLarge(revision, current int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", revision, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// ParseRevision reads a resourceVersion; "" and "0" are 0.
func ParseRevision(rv string) (int64, error) {
	if rv == "" || rv == "0" {
		return 0, nil
	}
	n, err := strconv.ParseInt(rv, 10, 64)
	if err != nil || n < 0 {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q: it has to be a number that a server gave out", rv))
	}
	return n, nil
}

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
func (r *Reader) unlistable(errs []error) error {
	causes := make([]metav1.StatusCause, 0, len(errs))
	for _, err := range errs {
		cause := metav1.StatusCause{
			Type:    metav1.CauseTypeUnexpectedServerResponse,
			Message: "an object cannot be read; the server's log says why",
		}
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
