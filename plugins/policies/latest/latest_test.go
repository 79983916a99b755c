// SPDX-License-Identifier: Apache-2.0

package latest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/policies/latest"
)

type objects struct {
	list  []runtime.Object
	err   error
	state any // nil = another one each time
	lists int
}

func (o *objects) List(context.Context, schema.GroupVersionKind, string, labels.Selector) ([]runtime.Object, error) {
	o.lists++
	return o.list, o.err
}

func (o *objects) State(schema.GroupVersionKind) (any, error) {
	if o.state == nil {
		return new(int), o.err
	}
	return o.state, o.err
}

func object(name string, generation int64) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetName(name)
	u.SetUID(types.UID("uid-" + name))
	u.SetGeneration(generation)
	return u
}

// TestGetReadsWhatHasChanged: each change that may matter has the objects read anew, and nothing else.
func TestGetReadsWhatHasChanged(t *testing.T) {
	api, reads, left, versions := &objects{}, 0, "", map[string]bool{}
	l := latest.New(api, []schema.GroupVersionKind{{Version: "v1", Kind: "Policy"}},
		func(all []*unstructured.Unstructured, version string) string {
			reads++
			versions[version] = true
			var names []string
			for _, o := range all {
				names = append(names, o.GetName())
			}
			return strings.Join(names, " ")
		})
	l.Counts = func(u *unstructured.Unstructured) (bool, time.Time) { return u.GetName() != left, time.Time{} }
	a, b := object("a", 1), object("b", 1)
	going := object("going", 1)
	now := metav1.Now()
	going.SetDeletionTimestamp(&now)
	written := object("a", 2)
	written.SetAnnotations(map[string]string{apiobject.WriterAnnotation: "somebody"})
	for _, step := range []struct {
		name, leave, want string
		list              []runtime.Object
		reads             int
	}{
		{"none", "", "", nil, 1},
		{"two", "", "a b", []runtime.Object{a, b, going}, 2},
		{"the same two", "", "a b", []runtime.Object{a, b}, 2},
		{"another generation", "", "a b", []runtime.Object{object("a", 2), b}, 3},
		{"another writer", "", "a b", []runtime.Object{written, b}, 4},
		{"one counts no more", "b", "a", []runtime.Object{written, b}, 5},
	} {
		left, api.list = step.leave, step.list
		got, err := l.Get(t.Context())
		if err != nil || got != step.want || reads != step.reads {
			t.Errorf("%s: %q after %d reads (%v), want %q after %d", step.name, got, reads, err, step.want, step.reads)
		}
	}
	if len(versions) != reads {
		t.Errorf("%d versions of %d reads", len(versions), reads)
	}
	api.err = errors.New("no store")
	if _, err := l.Get(t.Context()); err == nil || !strings.Contains(err.Error(), "read the Policys: no store") {
		t.Errorf("it fails with %v", err)
	}
}

// TestGetListsNothingThatHasNotChanged: while the state of the kinds is the same, they are not even listed, unless an object has
// stopped counting meanwhile.
func TestGetListsNothingThatHasNotChanged(t *testing.T) {
	ends := time.Time{}
	api := &objects{state: 1, list: []runtime.Object{object("a", 1), object("b", 1)}}
	l := latest.New(api, []schema.GroupVersionKind{{Version: "v1", Kind: "Policy"}, {Version: "v1", Kind: "Exception"}},
		func(all []*unstructured.Unstructured, _ string) int { return len(all) / 2 }) // both kinds have the same objects here
	l.Counts = func(u *unstructured.Unstructured) (bool, time.Time) {
		if u.GetName() != "b" || ends.IsZero() {
			return true, time.Time{}
		}
		return time.Now().Before(ends), ends
	}
	for _, step := range []struct {
		name        string
		change      func()
		want, lists int
	}{
		{"the first time", func() {}, 2, 2},
		{"the same", func() {}, 2, 2},
		{"another state", func() { api.state, api.list = 2, api.list[:1] }, 1, 4},
		{"another state of the same objects", func() { api.state = 3 }, 1, 6},
		{"the same again", func() {}, 1, 6},
		{"one that counts for an hour", func() { api.state, api.list, ends = 4, append(api.list, object("b", 2)), time.Now().Add(time.Hour) }, 2, 8},
		{"within the hour", func() {}, 2, 8},
		{"one that counted until now", func() { api.state, ends = 5, time.Now() }, 1, 10},
		{"its end is in the past", func() {}, 1, 12},
	} {
		step.change()
		got, err := l.Get(t.Context())
		if err != nil || got != step.want || api.lists != step.lists {
			t.Errorf("%s: %d objects after %d lists (%v), want %d after %d", step.name, got, api.lists, err, step.want, step.lists)
		}
	}
	api.err = errors.New("no store")
	if _, err := l.Get(t.Context()); err == nil || !strings.Contains(err.Error(), "no store") {
		t.Errorf("without a state it fails with %v", err)
	}
}
