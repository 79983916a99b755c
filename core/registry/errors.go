package registry

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// optimisticLock is what a client reads whose resourceVersion is not the newest.
const optimisticLock = "the object has been modified; please apply your changes to the latest version and try again"

func (r *Registry) conflict(name, message string) error {
	return apierrors.NewConflict(r.res.GroupResource, name, errors.New(message))
}

// storeError maps what the store and the cache report to API errors.
// Conflicts are not among them: onLive tries again.
func (r *Registry) storeError(err error, verb, name string) error {
	var conflict *store.ConflictError
	var unreadable *store.CorruptError
	var status apierrors.APIStatus
	switch {
	case err == nil, errors.As(err, &conflict), errors.As(err, &status):
		return err
	case errors.As(err, &unreadable):
		return corrupt(unreadable)
	case errors.Is(err, store.ErrNotFound):
		return apierrors.NewNotFound(r.res.GroupResource, name)
	case errors.Is(err, store.ErrCompacted), errors.Is(err, watchcache.ErrTooOld):
		return apierrors.NewResourceExpired("The resourceVersion for the provided " + verb + " is too old.")
	case errors.Is(err, store.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s %q is larger than what the store takes", r.res.GroupResource, name))
	case errors.Is(err, store.ErrUnavailable):
		// A write may have gone through all the same; clients find out by reading.
		return apierrors.NewServiceUnavailable(fmt.Sprintf("%s %s: %v", verb, r.res.GroupResource, err))
	case errors.Is(err, watchcache.ErrStopped):
		return apierrors.NewNotFound(r.res.GroupResource, name)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return apierrors.NewTimeoutError(fmt.Sprintf("%s of %s: the request did not complete within the allotted timeout", verb, r.res.GroupResource), 0)
	}
	return apierrors.NewInternalError(fmt.Errorf("%s %s: %w", verb, r.res.GroupResource, err))
}

// tooLarge answers a read whose resourceVersion does not exist yet.
func tooLarge(revision, current int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", revision, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// parseRevision reads a resourceVersion; "" and "0" are 0.
func parseRevision(rv string) (int64, error) {
	if rv == "" || rv == "0" {
		return 0, nil
	}
	n, err := strconv.ParseInt(rv, 10, 64)
	if err != nil || n < 0 {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q: it has to be a number that a server gave out", rv))
	}
	return n, nil
}
