// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Written remembers the resource versions that a controller wrote, so that it can
// tell a cache that shows its last write from one that doesn't yet. Optimistic
// locking alone is not enough where one decision rests on several objects: the
// one that is stale may not be the one that is written next.
type Written struct {
	mu      sync.Mutex
	by      map[types.UID]string
	created map[types.UID][]Creation // by owner
}

// Creation is an object that was created and that the cache has not shown yet.
type Creation struct {
	UID   types.UID
	Name  string
	Since time.Time
}

// NewWritten returns an empty memory.
func NewWritten() *Written {
	return &Written{by: map[types.UID]string{}, created: map[types.UID][]Creation{}}
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

// Forget drops what was written to an object, or created for it, that is gone.
func (w *Written) Forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.by, uid)
	delete(w.created, uid)
}
