// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/decision"
	"github.com/wasmplane/wasmplane/core/scheduler/gang"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
)

// One pod after the other is decided about, so that a pod whose decision takes long holds up those of
// everybody. Two kinds of pods can make it as long as they like: those with claims of devices, whose
// constraints the allocator tries in all combinations, and gangs, whose members are tried in every domain.
// Who may write claims and pods in one namespace writes both. So such tries have an end, and what they take
// beyond the usual is a debt of their namespace: while it is large, other namespaces' pods go first. So
// is what it takes to find out who makes room, where a plugin says that a great many pods may.
const (
	// longestGang is how long one gang is looked at.
	longestGang = 10 * time.Second
	// usual is what the decision about one pod may take without a debt.
	usual = 20 * time.Millisecond
	// mostOwed is the debt up to which a namespace's pods are tried as all others.
	mostOwed = 2 * time.Second
	// payback is how long it takes to be rid of a debt, as a multiple: a tenth of the scheduler's time is
	// a namespace's share then.
	payback = 9
)

func boundGang(ctx context.Context, why error) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, longestGang, why)
}

// debts are what namespaces owe, by name.
type debts map[string]debt

// debt is what was owed at a time.
type debt struct {
	owed time.Duration
	at   time.Time
}

func (d debt) left(now time.Time) time.Duration { return max(0, d.owed-now.Sub(d.at)/payback) }

// add what a decision about some pods took. Namespaces come and go: those whose debt is paid are forgotten.
func (d debts) add(namespace string, pods int, took time.Duration, now time.Time) {
	if took -= time.Duration(pods) * usual; took > 0 {
		maps.DeleteFunc(d, func(_ string, one debt) bool { return one.left(now) == 0 })
		d[namespace] = debt{d[namespace].left(now) + took, now}
	}
}

// due says whether a namespace's pods wait for its debt to become less.
func (d debts) due(namespace string, now time.Time) bool {
	return d[namespace].left(now) > mostOwed
}

// costly says whether who writes a pod decides how long the decision about it takes.
func costly(p *corev1.Pod) bool {
	_, member := gang.KeyOf(p)
	return member || len(p.Spec.ResourceClaims) > 0
}

// indebted puts a costly pod back whose namespace is in debt. It backs off, and is looked at again then.
func (s *Scheduler) indebted(ctx context.Context, prof *decision.Compiled, it *queue.Item) bool {
	pod := it.Info.Pod
	if !costly(pod) && !prof.Reclaims() || !s.debts.due(pod.Namespace, s.now()) {
		return false
	}
	s.queue.Errored(pod.UID)
	s.report(ctx, prof, pod, corev1.PodReasonUnschedulable, "decisions about claims of devices, gangs and room for pods of this namespace took long: others' pods go first for some minutes", "", false)
	return true
}
