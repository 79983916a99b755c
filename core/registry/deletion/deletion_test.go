// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// kind is a kind with a policy of its own for dependents.
type kind struct{ policy rest.GarbageCollectionPolicy }

func (kind) ObjectKinds(runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	return nil, false, nil
}
func (kind) Recognizes(schema.GroupVersionKind) bool { return true }
func (k kind) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return k.policy
}

// orphanDependents are the options of clients that are older than propagation policies.
func orphanDependents(yes bool) metav1.DeleteOptions {
	return metav1.DeleteOptions{OrphanDependents: &yes} //nolint:staticcheck // deprecated, and still sent
}

func TestFinalizersFollowTheRequestThenTheObjectThenItsKind(t *testing.T) {
	orphan, foreground, background := metav1.DeletePropagationOrphan, metav1.DeletePropagationForeground, metav1.DeletePropagationBackground
	const mine = "example.com/mine"
	for name, c := range map[string]struct {
		policy  rest.GarbageCollectionPolicy
		has     []string
		options metav1.DeleteOptions
		want    []string
	}{
		"nothing said":                   {"", []string{mine}, metav1.DeleteOptions{}, []string{mine}},
		"the kind orphans":               {rest.OrphanDependents, []string{mine}, metav1.DeleteOptions{}, []string{mine, metav1.FinalizerOrphanDependents}},
		"the request says otherwise":     {rest.OrphanDependents, []string{mine}, metav1.DeleteOptions{PropagationPolicy: &background}, []string{mine}},
		"the request orphans":            {"", nil, metav1.DeleteOptions{PropagationPolicy: &orphan}, []string{metav1.FinalizerOrphanDependents}},
		"the request waits":              {"", nil, metav1.DeleteOptions{PropagationPolicy: &foreground}, []string{metav1.FinalizerDeleteDependents}},
		"the object waits":               {rest.OrphanDependents, []string{metav1.FinalizerDeleteDependents, mine}, metav1.DeleteOptions{}, []string{metav1.FinalizerDeleteDependents, mine}},
		"the request changes the object": {"", []string{metav1.FinalizerDeleteDependents, mine}, metav1.DeleteOptions{PropagationPolicy: &orphan}, []string{mine, metav1.FinalizerOrphanDependents}},
		"the deprecated option":          {"", nil, orphanDependents(true), []string{metav1.FinalizerOrphanDependents}},
		"and not orphaned":               {rest.OrphanDependents, nil, orphanDependents(false), nil},
		"a kind without dependents":      {rest.Unsupported, []string{mine}, metav1.DeleteOptions{PropagationPolicy: &orphan}, []string{mine}},
	} {
		m := &metav1.ObjectMeta{Finalizers: c.has}
		if got := Finalizers(t.Context(), kind{c.policy}, m, &c.options); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestADeletionIsMarkedOnce(t *testing.T) {
	now := time.Unix(1700000000, 0)
	m := &metav1.ObjectMeta{Generation: 3}
	Mark(m, now)
	if m.Generation != 4 || !m.DeletionTimestamp.Time.Equal(now) || *m.DeletionGracePeriodSeconds != 0 {
		t.Errorf("marked as %+v", m)
	}
	Mark(m, now.Add(time.Minute))
	if m.Generation != 4 || !m.DeletionTimestamp.Time.Equal(now) {
		t.Errorf("marked again as %+v", m)
	}
	later := metav1.NewTime(now.Add(time.Hour))
	m = &metav1.ObjectMeta{DeletionTimestamp: &later}
	if Mark(m, now); !m.DeletionTimestamp.Time.Equal(now) {
		t.Errorf("a grace period that is over ends at %v", m.DeletionTimestamp)
	}
}
