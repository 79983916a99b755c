// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Written remembers the resource versions that a controller wrote, so that it can
// tell a cache that shows its last write from one that doesn't yet. Optimistic
// locking alone is not enough where one decision rests on several objects: the
// one that is stale may not be the one that is written next.
//
// A write whose answer was lost may have been made all the same. Whoever decides over
// several objects reports its failed writes by Failed, and asks Sure instead of Seen.
type Written struct {
	mu      sync.Mutex
	by      map[types.UID]string
	doubted map[types.UID]struct{}
	created map[types.UID][]Creation // by owner
}

// Creation is an object that was created and that the cache has not shown yet. One without
// a UID, and without a time, was not answered: the server must be asked whether it is there.
type Creation struct {
	UID   types.UID
	Name  string
	Since time.Time
}

// NewWritten returns an empty memory.
func NewWritten() *Written {
	return &Written{by: map[types.UID]string{}, doubted: map[types.UID]struct{}{}, created: map[types.UID][]Creation{}}
}

// RecordCreated remembers an object created for an owner, until Appeared.
func (w *Written) RecordCreated(owner types.UID, obj metav1.Object) {
	w.Record(obj)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.created[owner] = append(w.created[owner], Creation{obj.GetUID(), obj.GetName(), time.Now()})
}

// Appeared notes that an object came into the cache, or that it is known to be gone.
func (w *Written) Appeared(owner, uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	left := slices.DeleteFunc(w.created[owner], func(c Creation) bool { return c.UID == uid })
	if len(left) == 0 {
		delete(w.created, owner)
		return
	}
	w.created[owner] = left
}

// Unseen are the objects created for an owner that have not appeared.
func (w *Written) Unseen(owner types.UID) []Creation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.created[owner])
}

// Record remembers the object as the server returned it from a write.
func (w *Written) Record(obj metav1.Object) {
	if obj.GetResourceVersion() == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by[obj.GetUID()] = obj.GetResourceVersion()
}

// Seen reports whether the cached object is at least as new as what was written.
func (w *Written) Seen(cached metav1.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	version, ok := w.by[cached.GetUID()]
	if !ok {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(cached.GetResourceVersion(), version)
	if err == nil && order < 0 {
		return false
	}
	delete(w.by, cached.GetUID())
	return true
}

// Failed remembers that a write of the object ended with err, unless err says that the
// server did not make it.
func (w *Written) Failed(obj metav1.Object, err error) {
	if !mayBeMade(err) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.doubted[obj.GetUID()] = struct{}{}
}

// FailedCreate remembers, until Appeared, that the creation of an object for an owner ended
// with err, unless err says that the server did not make it.
func (w *Written) FailedCreate(owner types.UID, obj metav1.Object, err error) {
	if !mayBeMade(err) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.created[owner] = append(w.created[owner], Creation{Name: obj.GetName()})
}

// mayBeMade reports whether a write that ended with err may have been made: the answer
// did not come, or the server itself does not know what its store did.
func mayBeMade(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout,
		metav1.StatusReasonInternalError, metav1.StatusReasonServiceUnavailable:
		return err != nil
	default:
		return false
	}
}

// Sure is nil where the cached object is at least as new as what was written, and ErrStale
// where it is not. After a write that Failed it reads the object from the server once, by
// fresh, to learn which version the cache must show.
func (w *Written) Sure(ctx context.Context, cached metav1.Object, fresh func(context.Context) (metav1.Object, error)) error {
	uid := cached.GetUID()
	w.mu.Lock()
	_, doubted := w.doubted[uid]
	w.mu.Unlock()
	if doubted {
		live, err := fresh(ctx)
		if apierrors.IsNotFound(err) || (err == nil && live.GetUID() != uid) {
			return ErrStale // it is gone, which the cache will show
		}
		if err != nil {
			return fmt.Errorf("reading %s/%s, a write of which was not answered: %w", cached.GetNamespace(), cached.GetName(), err)
		}
		w.mu.Lock()
		delete(w.doubted, uid)
		w.by[uid] = live.GetResourceVersion()
		w.mu.Unlock()
	}
	if !w.Seen(cached) {
		return ErrStale
	}
	return nil
}

// Forget drops what was written to an object, or created for it, that is gone.
func (w *Written) Forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.by, uid)
	delete(w.doubted, uid)
	delete(w.created, uid)
}
