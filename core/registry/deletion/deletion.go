// SPDX-License-Identifier: Apache-2.0

// Package deletion decides what becomes of an object that is deleted while
// something still holds it: which finalizers it gets, and how its metadata shows
// that the deletion has begun.
//
// It guarantees upstream's order: what the request says, else what the object's
// finalizers say, else what its kind does by default. It is pure: it reads no store
// and asks nobody.
package deletion

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Finalizers are the object's with those of the garbage collector that the
// deletion's propagation policy asks for.
func Finalizers(ctx context.Context, strategy rest.RESTDeleteStrategy, m metav1.Object, options *metav1.DeleteOptions) []string {
	orphan, foreground := propagation(ctx, strategy, m, options)
	kept := slices.DeleteFunc(slices.Clone(m.GetFinalizers()), func(f string) bool {
		return f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
	})
	if orphan {
		kept = append(kept, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		kept = append(kept, metav1.FinalizerDeleteDependents)
	}
	if len(kept) == len(m.GetFinalizers()) && !slices.ContainsFunc(kept,
		func(f string) bool { return !slices.Contains(m.GetFinalizers(), f) }) {
		return m.GetFinalizers()
	}
	return kept
}

// propagation decides what happens to dependents: what the options say, else
// what the object's finalizers say, else what its kind does by default.
func propagation(ctx context.Context, strategy rest.RESTDeleteStrategy, m metav1.Object,
	options *metav1.DeleteOptions,
) (orphan, foreground bool) {
	policy := rest.GarbageCollectionPolicy("")
	if s, ok := strategy.(rest.GarbageCollectionDeleteStrategy); ok {
		policy = s.DefaultGarbageCollectionPolicy(ctx)
	}
	switch {
	case policy == rest.Unsupported:
		return false, false
	case options.OrphanDependents != nil: //nolint:staticcheck // deprecated, and still sent
		return *options.OrphanDependents, false //nolint:staticcheck // as above
	case options.PropagationPolicy != nil:
		return *options.PropagationPolicy == metav1.DeletePropagationOrphan, *options.PropagationPolicy == metav1.DeletePropagationForeground
	}
	for _, f := range m.GetFinalizers() {
		switch f {
		case metav1.FinalizerOrphanDependents:
			return true, false
		case metav1.FinalizerDeleteDependents:
			return false, true
		}
	}
	return policy == rest.OrphanDependents, false
}

// Mark records that the deletion has begun, and leaves no grace period: what still
// holds the object are its finalizers.
func Mark(m metav1.Object, now time.Time) {
	if m.GetDeletionTimestamp() == nil && m.GetGeneration() > 0 {
		m.SetGeneration(m.GetGeneration() + 1)
	}
	if at := m.GetDeletionTimestamp(); at == nil || at.After(now) {
		t := metav1.NewTime(now)
		m.SetDeletionTimestamp(&t)
	}
	var zero int64
	m.SetDeletionGracePeriodSeconds(&zero)
}

// Terminate marks a namespace as terminating.
func Terminate(ns *corev1.Namespace, now time.Time) {
	if ns.DeletionTimestamp == nil {
		ns.DeletionTimestamp = &metav1.Time{Time: now}
	}
	ns.DeletionGracePeriodSeconds = nil // it takes as long as it takes
	ns.Status.Phase = corev1.NamespaceTerminating
}
