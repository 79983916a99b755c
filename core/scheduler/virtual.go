// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/permission"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
	"github.com/wasmplane/wasmplane/core/scheduler/report"
)

// VirtualConfig configures a Virtual.
type VirtualConfig struct {
	Profiles []Profile
	Queue    queue.Config
	// Informers hold what the plugins look up; nobody starts them.
	Informers informers.SharedInformerFactory
	Effects   report.Effects
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
	way     permission.Way
	again   time.Time
	until   time.Time
	refused <-chan string
	// permitted is what Permit and PreBind plugins said of a member of a gang that waits for the others.
	permitted *framework.Status
}

// NewVirtual makes a scheduler to which the caller tells everything that happens.
func NewVirtual(cfg VirtualConfig) (*Virtual, error) {
	seeds := rand.New(rand.NewPCG(cfg.Seed, 1)) //nolint:gosec // it is to be repeated
	s, err := assemble(Config{
		Informers: cfg.Informers, Profiles: cfg.Profiles, Queue: cfg.Queue, Workers: 1, Logger: cfg.Logger, PodGroups: true,
	}, environment{effects: cfg.Effects, now: cfg.Now, seed: seeds.Uint64})
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

// SetGroup adds or changes a PodGroup.
func (v *Virtual) SetGroup(g *schedulingv1beta1.PodGroup) { v.s.podGroup(nil, g) }

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
	Others   []Try // of the same gang
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
	for _, taken := range v.s.cycle(ctx, it, func(p *corev1.Pod, d *Decision) {
		if p == t.Pod {
			t.Decision = d
		} else {
			t.Others = append(t.Others, Try{Pod: p, Decision: d})
		}
	}) {
		h := &held{taken: taken, way: permission.Way{Permits: taken.profile.Permits}, until: v.s.now().Add(longestWait)}
		h.refused = v.s.waiting.Add(taken.item.Info.Pod.UID)
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
	case h.voted && h.gang.Decided(), len(h.refused) > 0: // somebody has ended its wait
		return time.Time{}
	case h.voted:
		return h.until
	case h.again.After(h.until):
		return h.until
	}
	return h.again
}

// ask the Permit plugins about a pod, and bind it or send it back once they have decided.
func (v *Virtual) ask(ctx context.Context, h *held) {
	st := h.permitted
	switch {
	case !h.voted:
		var waits bool
		if st, waits = v.permission(ctx, h); waits {
			return
		}
		if h.gang != nil {
			if st.IsSuccess() {
				st = v.s.prepare(h.ctx, h.profile, h.item, h.decision) //nolint:contextcheck // the attempt has its own, which its pod ends
			}
			h.permitted, h.voted = st, true
			if h.gang.Vote(st.IsSuccess()); st.IsSuccess() && !h.gang.Decided() {
				return
			}
		}
	case !h.gang.Decided(): // it waited for the others until somebody or the time ended it
		h.gang.Withdraw()
		if st = h.way.Denied(permission.TooLong); len(h.refused) > 0 {
			st = h.way.Denied(<-h.refused)
		}
	}
	uid := h.item.Info.Pod.UID
	v.s.waiting.Remove(uid)
	v.held = slices.DeleteFunc(v.held, func(o *held) bool { return o == h })
	h.seen.Bound = v.s.take(h.ctx, h.taken, st) //nolint:contextcheck // that of the cycle which took the pod
	h.seen.Finish(h.decision)
}

// permission is what the Permit plugins say, or that the pod waits for them.
func (v *Virtual) permission(ctx context.Context, h *held) (st *framework.Status, waits bool) {
	select {
	case why := <-h.refused:
		return h.way.Denied(why), false
	default:
	}
	now := v.s.now()
	if !now.Before(h.until) {
		return h.way.Denied(permission.TooLong), false
	}
	st, wait := h.way.Ask(ctx, h.decision.State, h.item.Info, h.decision.Node)
	if waits = !st.IsSuccess() && st.Code == framework.Wait; waits {
		h.again = now.Add(wait)
	}
	return st, waits
}
