// SPDX-License-Identifier: Apache-2.0

// Package permission is the way of a pod that has taken its room to being bound: Permit
// plugins may hold it back, and others end its wait.
package permission

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// TooLong is why a pod that was held back until the end of its time is refused.
const TooLong = "timed out while waiting for permission to bind"

// Way is a pod's way through the Permit plugins.
type Way struct {
	Permits []framework.Permit
	// Waiting is told that a plugin holds the pod back, once; nil = nobody is.
	Waiting func()
	next    int // to be asked
}

// Ask one plugin after the other until one refuses, or says Wait: it is asked again after
// the time that comes with it.
func (w *Way) Ask(ctx context.Context, state *framework.State, p *framework.PodInfo, node string) (*framework.Status, time.Duration) {
	for ; w.next < len(w.Permits); w.next++ {
		st, wait := w.Permits[w.next].Permit(ctx, state, p, node)
		switch {
		case st.IsSuccess():
		case st.Code == framework.Wait:
			return st, max(wait, time.Millisecond)
		default:
			return framework.By(st, w.Permits[w.next]), 0
		}
	}
	return nil, 0
}

// Wait asks until there is an answer, for so long at the most, or until refused says why not.
// waited says whether a plugin held the pod back.
func (w *Way) Wait(ctx context.Context, state *framework.State, p *framework.PodInfo, node string, refused <-chan string,
	most time.Duration,
) (st *framework.Status, waited bool) {
	end := time.NewTimer(most)
	defer end.Stop()
	for {
		st, wait := w.Ask(ctx, state, p, node)
		if st.IsSuccess() || st.Code != framework.Wait {
			return st, waited
		}
		if !waited && w.Waiting != nil {
			w.Waiting()
		}
		waited = true
		again := time.NewTimer(wait)
		select {
		case <-again.C:
			continue
		case why := <-refused:
			st = w.Denied(why)
		case <-end.C:
			st = w.Denied(TooLong)
		case <-ctx.Done():
			st = framework.AsStatus(ctx.Err())
		}
		again.Stop()
		return st, waited
	}
}

// Denied ends the wait for the plugin that is asked now.
func (w *Way) Denied(why string) *framework.Status {
	st := framework.NewStatus(framework.Unschedulable, why)
	if w.next == len(w.Permits) {
		return st
	}
	return framework.By(st, w.Permits[w.next])
}

// Waiters are the pods that are held back.
type Waiters struct {
	mu   sync.Mutex
	pods map[types.UID]chan string
}

// Add announces a waiting pod; what comes from the channel is why it must not wait any longer.
func (w *Waiters) Add(uid types.UID) <-chan string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods == nil {
		w.pods = map[types.UID]chan string{}
	}
	c := make(chan string, 1)
	w.pods[uid] = c
	return c
}

// Remove takes it off.
func (w *Waiters) Remove(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
}

// Refuse ends the wait of a pod; it says whether the pod waited.
func (w *Waiters) Refuse(uid types.UID, why string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := w.pods[uid]
	if !ok {
		return false
	}
	select {
	case c <- why:
	default: // told already
	}
	return true
}
