// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Vanished remembers owners that have lost a child: one that is gone, or is being deleted.
// Before another is created in its place, the owner is read from the server once. A cache
// whose watch stands still shows an owner that was deleted, and perhaps made anew under its
// name; the garbage collector deletes what is created for it at once, and the controller
// would create it again, as fast as both can write.
//
// A child that was never there, or that nobody took away, costs no read.
type Vanished struct {
	mu sync.Mutex
	by map[Key]struct{}
}

// NewVanished returns an empty memory.
func NewVanished() *Vanished { return &Vanished{by: map[Key]struct{}{}} }

// Note says that a child of the cached owner has vanished. The key is queued after it, so
// that the reconcile of an owner that is gone can Forget it.
func (v *Vanished) Note(owner Key) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.by[owner] = struct{}{}
}

// Forget drops an owner that is gone from the cache.
func (v *Vanished) Forget(owner Key) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.by, owner)
}

// Sure is nil where children may be created for the owner as the cache shows it: none has
// vanished since the last time, or fresh, the owner as the server has it, is the same and is
// not being deleted. Otherwise it is ErrStale: the cache will show it sooner or later.
func (v *Vanished) Sure(ctx context.Context, owner metav1.Object, fresh func(context.Context) (metav1.Object, error)) error {
	key := Key{Namespace: owner.GetNamespace(), Name: owner.GetName()}
	v.mu.Lock()
	_, doubted := v.by[key]
	delete(v.by, key) // before the read: what vanishes after it counts anew
	v.mu.Unlock()
	if !doubted {
		return nil
	}
	live, err := fresh(ctx)
	if err == nil && live.GetUID() == owner.GetUID() && live.GetDeletionTimestamp() == nil {
		return nil
	}
	v.Note(key)
	if err == nil || apierrors.IsNotFound(err) {
		return ErrStale
	}
	return fmt.Errorf("reading %s, a child of which has vanished: %w", key, err)
}
