// SPDX-License-Identifier: Apache-2.0

package latest_test

import (
	"context"
	"errors"
	"strings"
	"testing"

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
	list []runtime.Object
	err  error
}

func (o *objects) List(context.Context, schema.GroupVersionKind, string, labels.Selector) ([]runtime.Object, error) {
	return o.list, o.err
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
	l.Counts = func(u *unstructured.Unstructured) bool { return u.GetName() != left }
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
