// SPDX-License-Identifier: Apache-2.0

// Package reconcilertest is the contract of controllers.Reconciler as a suite: what
// passes Run may be handed to the host of reconcilers. It is for tests only.
package reconcilertest

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// Run runs the suite. Each call of create gives a reconciler of its own. primary is an
// object for which the reconciler plans to apply at least one other.
func Run(t *testing.T, create func(t *testing.T) controllers.Reconciler, primary *unstructured.Unstructured) {
	t.Helper()
	s := controllers.Snapshot{Namespace: primary.GetNamespace(), Name: primary.GetName(), Primary: primary, Now: time.Unix(1700000000, 0)}
	for _, c := range []struct {
		name string
		test func(t *testing.T, r controllers.Reconciler, s controllers.Snapshot)
	}{
		{"inputs are whole and do not change", inputs},
		{"the snapshot is not changed", leavesTheSnapshot},
		{"one snapshot has one plan", repeats},
		{"a plan names its objects", namesObjects},
		{"an object that is gone gets no status", gone},
		{"several keys at a time", concurrent},
		{"a context that ended ends the call", cancelled},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, create(t), copied(s)) })
	}
}

func copied(s controllers.Snapshot) controllers.Snapshot {
	s.Primary = s.Primary.DeepCopy()
	owned := s.Owned
	s.Owned = nil
	for _, o := range owned {
		s.Owned = append(s.Owned, o.DeepCopy())
	}
	return s
}

func plan(t *testing.T, r controllers.Reconciler, s controllers.Snapshot) controllers.Plan {
	t.Helper()
	p, err := r.Reconcile(t.Context(), s)
	if err != nil {
		t.Fatalf("reconcile %s/%s: %v", s.Namespace, s.Name, err)
	}
	return p
}

func inputs(t *testing.T, r controllers.Reconciler, s controllers.Snapshot) {
	before := r.Inputs()
	plan(t, r, s)
	if after := r.Inputs(); !reflect.DeepEqual(before, after) {
		t.Errorf("inputs were %+v before a call and are %+v after it", before, after)
	}
	if r.Name() == "" || strings.ContainsAny(r.Name(), " /") {
		t.Errorf("the name is %q; it becomes the field manager of what is applied", r.Name())
	}
	for _, w := range append([]controllers.Watched{before.Primary}, before.Owned...) {
		if w.Kind == "" || w.Resource.Resource == "" || w.Resource.Version == "" {
			t.Errorf("%+v cannot be watched: it needs a kind, a version and a resource", w)
		}
	}
	if before.Primary.Kind != s.Primary.GetKind() {
		t.Errorf("the primary is a %s, the snapshot's a %s", before.Primary.Kind, s.Primary.GetKind())
	}
	if namespace, name, ok := strings.Cut(before.ServiceAccount, "/"); !ok || namespace == "" || name == "" {
		t.Errorf("the service account is %q, expected NAMESPACE/NAME", before.ServiceAccount)
	}
}

// The host's informers share their objects with everybody.
func leavesTheSnapshot(t *testing.T, r controllers.Reconciler, s controllers.Snapshot) {
	s.Owned = plan(t, r, s).Apply
	before := copied(s)
	p := plan(t, r, s)
	for _, o := range p.Apply {
		o.SetLabels(map[string]string{"changed": "by the host"}) // an owner reference, in life
	}
	if !reflect.DeepEqual(before, s) {
		t.Errorf("the snapshot was\n%+v\nand is now\n%+v", before, s)
	}
}

// A plan is carried out again after a crash.
func repeats(t *testing.T, r controllers.Reconciler, s controllers.Snapshot) {
	first, second := plan(t, r, copied(s)), plan(t, r, copied(s))
	if !reflect.DeepEqual(first, second) {
		t.Errorf("the same snapshot led to\n%+v\nand then to\n%+v", first, second)
	}
}

func namesObjects(t *testing.T, r controllers.Reconciler, s controllers.Snapshot) {
	p := plan(t, r, s)
	if len(p.Apply) == 0 {
		t.Fatal("the plan applies nothing; the suite needs an object for which it does")
	}
	for _, o := range p.Apply {
		if o.GetAPIVersion() == "" || o.GetKind() == "" || o.GetName() == "" {
			t.Errorf("an object to apply lacks apiVersion, kind or name: %v", o.Object)
		}
		if o.GetResourceVersion() != "" || o.GetUID() != "" || len(o.GetManagedFields()) > 0 {
			t.Errorf("%s %s carries what only the server sets: %v", o.GetKind(), o.GetName(), o.Object)
		}
	}
	for _, d := range p.Delete {
		if d.Kind.Kind == "" || d.Kind.Version == "" || d.Name == "" {
			t.Errorf("an object to delete lacks version, kind or name: %+v", d)
		}
	}
	if p.Requeue < 0 {
		t.Errorf("requeue after %v", p.Requeue)
	}
}

func gone(t *testing.T, r controllers.Reconciler, s controllers.Snapshot) {
	s.Primary = nil
	p := plan(t, r, s)
	if p.Status != nil || len(p.Conditions) > 0 {
		t.Errorf("status %v and conditions %v have no object to stand in", p.Status, p.Conditions)
	}
	if len(p.Apply) > 0 {
		t.Errorf("%d objects are applied that nothing would own", len(p.Apply))
	}
}

// The host works on several keys at a time, on each of them once.
func concurrent(t *testing.T, r controllers.Reconciler, s controllers.Snapshot) {
	want := plan(t, r, copied(s))
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for range 5 {
				switch got, err := r.Reconcile(t.Context(), copied(s)); {
				case err != nil:
					t.Errorf("beside others: %v", err)
				case !reflect.DeepEqual(got, want):
					t.Errorf("beside others: %+v, alone: %+v", got, want)
				}
			}
		})
	}
	calls.Wait()
}

// The host stops by ending the context. Pure code may answer all the same.
func cancelled(t *testing.T, r controllers.Reconciler, s controllers.Snapshot) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the host stops"))
	before := copied(s)
	if _, err := r.Reconcile(ctx, s); err == nil {
		plan(t, r, before)
		return
	}
	plan(t, r, before) // what was cut off does no harm to the next call
}
