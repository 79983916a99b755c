// SPDX-License-Identifier: Apache-2.0

// Package clearance makes room for pods beside the loop that decides: the API's answers to the
// deletion of many victims must not hold up the pods that need no victims. A removal ends when
// all victims are seen to go, or when one could not be removed.
package clearance

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/wasmplane/wasmplane/core/run"
)

// removers is how many removals are carried out at the same time.
const removers = 16

// Removal is what makes room for one pod, or for one group of pods.
type Removal struct {
	// Victims that have to be seen to go.
	Victims []types.UID
	// Do asks for all that is needed. It is called once.
	Do func(ctx context.Context) error
	// Failed is called with the error of Do, if there is one, and then Ended; Ended without it once
	// all victims are seen to go. Ended must not wait.
	Failed func(ctx context.Context, err error)
	Ended  func(failed bool)

	left map[types.UID]struct{}
	done bool
}

// Removals are those under way. They are safe for concurrent use.
type Removals struct {
	queue workqueue.TypedInterface[*Removal]

	mu      sync.Mutex
	victims map[types.UID][]*Removal
}

// New makes one; nothing is removed before Run.
func New() *Removals {
	return &Removals{queue: workqueue.NewTyped[*Removal](), victims: map[types.UID][]*Removal{}}
}

// Submit has a removal carried out. It does not wait.
func (r *Removals) Submit(one *Removal) {
	r.mu.Lock()
	one.left = map[types.UID]struct{}{}
	for _, v := range one.Victims {
		one.left[v] = struct{}{}
		r.victims[v] = append(r.victims[v], one)
	}
	r.mu.Unlock()
	r.queue.Add(one)
}

// Seen is told of a pod that goes, or that has gone; most are nobody's victims.
func (r *Removals) Seen(pod types.UID) {
	if r == nil {
		return
	}
	for _, one := range r.seen(pod) {
		one.Ended(false)
	}
}

// seen takes a victim off, and returns the removals that have ended by that.
func (r *Removals) seen(victim types.UID) (ended []*Removal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.victims[victim] {
		delete(one.left, victim)
		if one.done && len(one.left) == 0 {
			ended = append(ended, one)
		}
	}
	delete(r.victims, victim)
	return ended
}

// Run removes until ctx ends. What is left then is not removed: who decides next decides anew.
func (r *Removals) Run(ctx context.Context) {
	run.Work(ctx, "removing victims", removers, r.queue, r.remove)
}

func (r *Removals) remove(ctx context.Context, one *Removal) {
	err := one.Do(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		one.Failed(ctx, err)
	}
	if r.did(one, err) {
		one.Ended(err != nil)
	}
}

// did records that a removal was carried out, and says whether it has ended by that.
func (r *Removals) did(one *Removal, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	one.done = true
	if err == nil && len(one.left) > 0 {
		return false
	}
	for v := range one.left {
		if r.victims[v] = slices.DeleteFunc(r.victims[v], func(o *Removal) bool { return o == one }); len(r.victims[v]) == 0 {
			delete(r.victims, v)
		}
	}
	return true
}
