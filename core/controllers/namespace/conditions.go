// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// findings are what one pass over a namespace's content came to.
type findings struct {
	discovery, parsing error
	deletion           []error
	remaining          map[schema.GroupVersionResource]int
	finalizers         map[string]int
	// partial: pods are still there, and nothing else was looked at.
	partial bool
}

func (f *findings) err() error {
	return errors.Join(append([]error{f.discovery, f.parsing}, f.deletion...)...)
}

func (f *findings) left() int {
	n := 0
	for _, count := range f.remaining {
		n += count
	}
	return n
}

// conditions tell a user why a namespace is still Terminating.
func (f *findings) conditions(now time.Time) []corev1.NamespaceCondition {
	t := metav1.NewTime(now)
	set := func(kind corev1.NamespaceConditionType, bad bool, badReason, badMessage, okReason, okMessage string) corev1.NamespaceCondition {
		if bad {
			return corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: t, Reason: badReason, Message: badMessage}
		}
		return corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionFalse, LastTransitionTime: t, Reason: okReason, Message: okMessage}
	}
	return []corev1.NamespaceCondition{
		set(corev1.NamespaceDeletionDiscoveryFailure, f.discovery != nil, "DiscoveryFailed", discoveryMessage(f.discovery),
			"ResourcesDiscovered", "All resources successfully discovered"),
		set(corev1.NamespaceDeletionGVParsingFailure, f.parsing != nil, "GroupVersionParsingFailed", fmt.Sprint(f.parsing),
			"ParsedGroupVersions", "All legacy kube types successfully parsed"),
		set(corev1.NamespaceDeletionContentFailure, len(f.deletion) > 0, "ContentDeletionFailed", deletionMessage(f.deletion),
			"ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
		set(corev1.NamespaceContentRemaining, len(f.remaining) > 0,
			"SomeResourcesRemain", "Some resources are remaining: "+remainingMessage(f.remaining),
			"ContentRemoved", "All content successfully removed"),
		set(corev1.NamespaceFinalizersRemaining, len(f.finalizers) > 0,
			"SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: "+finalizersMessage(f.finalizers),
			"ContentHasNoFinalizers", "All content-preserving finalizers finished"),
	}
}

func discoveryMessage(err error) string {
	var groups *discovery.ErrGroupDiscoveryFailed
	if errors.As(err, &groups) {
		return fmt.Sprintf("Discovery failed for some groups, %d failing: %v", len(groups.Groups), err)
	}
	return fmt.Sprint(err)
}

func deletionMessage(errs []error) string {
	messages := make([]string, len(errs))
	for i, err := range errs {
		messages[i] = err.Error()
	}
	slices.Sort(messages)
	return fmt.Sprintf("Failed to delete all resource types, %d remaining: %s", len(errs), strings.Join(messages, ", "))
}

func remainingMessage(remaining map[schema.GroupVersionResource]int) string {
	var parts []string
	for r, n := range remaining {
		parts = append(parts, fmt.Sprintf("%s.%s has %d resource instances", r.Resource, r.Group, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func finalizersMessage(finalizers map[string]int) string {
	var parts []string
	for f, n := range finalizers {
		parts = append(parts, fmt.Sprintf("%s in %d resource instances", f, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// merge puts the found conditions into the status and reports whether that changed
// anything. Conditions of other types stay.
func merge(status *corev1.NamespaceStatus, found []corev1.NamespaceCondition) (changed bool) {
	for _, c := range found {
		i := slices.IndexFunc(status.Conditions, func(was corev1.NamespaceCondition) bool { return was.Type == c.Type })
		if i < 0 {
			status.Conditions = append(status.Conditions, c)
			changed = true
			continue
		}
		was := &status.Conditions[i]
		if was.Status == c.Status && was.Reason == c.Reason && was.Message == c.Message {
			continue
		}
		if was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
		*was = c
		changed = true
	}
	return changed
}
