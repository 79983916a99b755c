package controllers

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Written remembers the resource versions that a controller wrote, so that it can
// tell a cache that shows its last write from one that doesn't yet. Optimistic
// locking alone is not enough where one decision rests on several objects: the
// one that is stale may not be the one that is written next.
type Written struct {
	mu sync.Mutex
	by map[types.UID]string
}

// NewWritten returns an empty memory.
func NewWritten() *Written { return &Written{by: map[types.UID]string{}} }

// Note remembers the object as the server returned it from a write.
func (w *Written) Note(obj metav1.Object) {
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

// Forget drops what was written to an object that is gone.
func (w *Written) Forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.by, uid)
}
