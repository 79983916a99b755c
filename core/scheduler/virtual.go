// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
)

// VirtualConfig configures a Virtual.
type VirtualConfig struct {
	Profiles []Profile
	Queue    queue.Config
	// Informers hold what the plugins look up; nobody starts them.
	Informers informers.SharedInformerFactory
	Effects   Effects
	// Now is the clock. Only the caller moves it on.
	Now func() time.Time
	// Seed of all decisions.
	Seed   uint64
	Logger *slog.Logger
}

// Virtual is a scheduler on a cluster that is not real, at a time that its caller sets: the
// queue, the cycles and the plugins are the ones of a Scheduler. It works when it is
// asked to, on the caller's goroutine alone, so that the same events and the same seed
// give the same decisions. It is not safe for concurrent use.
type Virtual struct {
	s    *Scheduler
	held []*held
}

// held is a pod that has taken its room and waits for permission to be bound.
type held struct {
	*taken
	way     permission
	again   time.Time
	until   time.Time
	refused <-chan string
}

// NewVirtual makes a scheduler to which the caller tells everything that happens.
func NewVirtual(cfg VirtualConfig) (*Virtual, error) {
	seeds := rand.New(rand.NewPCG(cfg.Seed, 1)) //nolint:gosec // it is to be repeated
	s, err := assemble(Config{
		Informers: cfg.Informers, Profiles: cfg.Profiles, Queue: cfg.Queue, Workers: 1, Logger: cfg.Logger,
	}, environment{cfg.Effects, cfg.Now, seeds.Uint64})
	if err != nil {
		return nil, err
	}
	return &Virtual{s: s}, nil
}

// SetNode adds or changes a node.
func (v *Virtual) SetNode(n *corev1.Node) { v.s.node(nil, n) }

// RemoveNode takes a node away; its pods are the caller's to take away.
func (v *Virtual) RemoveNode(n *corev1.Node) { v.s.node(n, nil) }

// AddPod is told of a pod that has come, with or without a node.
func (v *Virtual) AddPod(p *corev1.Pod) { v.s.pod(nil, p) }

// ChangePod is told of a pod that has changed.
func (v *Virtual) ChangePod(old, now *corev1.Pod) { v.s.pod(old, now) }

// RemovePod is told of a pod that has ended or was deleted.
func (v *Virtual) RemovePod(p *corev1.Pod) { v.s.gone(p) }

// Snapshot is the cluster as the scheduler sees it.
func (v *Virtual) Snapshot() *framework.Snapshot { return v.s.cache.Snapshot() }

// Try is the outcome of one step.
type Try struct {
	Pod *corev1.Pod
	// Attempts with this one.
	Attempts int
	// Decision of the cycle; nil where there was none: the pod may not be tried, or a pod
	// that waited for permission got it or not.
	Decision *Decision
}

// Step does what is due first: a pod that waits for permission is asked for again, or the
// next pod of the queue is tried. It is false where nothing is due now; then next is when
// something will be, zero for never unless something happens.
func (v *Virtual) Step(ctx context.Context) (t Try, worked bool, next time.Time) {
	if h, at := v.due(); h != nil {
		v.ask(ctx, h)
		return Try{Pod: h.item.Info.Pod, Attempts: h.item.Attempts}, true, time.Time{}
	} else if !at.IsZero() {
		next = at
	}
	it, at := v.s.queue.Try(ctx)
	if it == nil {
		if next.IsZero() || !at.IsZero() && at.Before(next) {
			next = at
		}
		return Try{}, false, next
	}
	t = Try{Pod: it.Info.Pod, Attempts: it.Attempts}
	if taken := v.s.cycle(ctx, it, func(d *Decision) { t.Decision = d }); taken != nil {
		h := &held{taken: taken, way: permission{permits: taken.profile.permits}, until: v.s.now().Add(longestWait)}
		h.refused = v.s.waiting.add(it.Info.Pod.UID)
		v.held = append(v.held, h)
		v.ask(ctx, h)
	}
	return t, true, time.Time{}
}

// due is a waiting pod that is to be asked for now, or when one will be.
func (v *Virtual) due() (*held, time.Time) {
	var first time.Time
	for _, h := range v.held {
		if at := h.due(); !at.After(v.s.now()) {
			return h, time.Time{}
		} else if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return nil, first
}

func (h *held) due() time.Time {
	switch {
	case len(h.refused) > 0: // somebody has ended its wait
		return time.Time{}
	case h.again.After(h.until):
		return h.until
	}
	return h.again
}

// ask the Permit plugins about a pod, and bind it or send it back once they have decided.
func (v *Virtual) ask(ctx context.Context, h *held) {
	var st *framework.Status
	select {
	case why := <-h.refused:
		st = h.way.denied(why)
	default:
		if now := v.s.now(); now.Before(h.until) {
			var wait time.Duration
			st, wait = h.way.ask(ctx, h.decision, h.item.Info)
			if !st.IsSuccess() && st.Code == framework.Wait {
				h.again = now.Add(wait)
				return
			}
		} else {
			st = h.way.denied(tooLong)
		}
	}
	uid := h.item.Info.Pod.UID
	v.s.waiting.remove(uid)
	v.held = slices.DeleteFunc(v.held, func(o *held) bool { return o == h })
	h.seen.bound = v.s.take(ctx, h.profile, h.item, h.decision, st)
	h.seen.finish(h.decision)
}
