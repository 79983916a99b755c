// SPDX-License-Identifier: Apache-2.0

// Package admissiontest is the conformance suite of admission.Plugin: every
// implementation passes it, native or in Wasm.
package admissiontest

import (
	"context"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
)

// Case is one request with what is expected of the plugin.
type Case struct {
	Name string
	// Request makes the request anew; the suite asks several times.
	Request func() *admission.Request
	// Denied is a part of the refusal; empty: the request is let through.
	Denied string
	// Check looks at the object after mutation; nil: it must not have changed.
	Check func(t *testing.T, o runtime.Object)
}

// Run holds p to the contract and to the cases, alone and many at a time.
func Run(t *testing.T, p admission.Plugin, cases ...Case) {
	t.Helper()
	t.Run("has a name and a duty", func(t *testing.T) { hasDuty(t, p) })
	t.Run("copes with requests that are not its own", func(t *testing.T) { copes(t, p) })
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) { c.run(t, p) })
	}
	t.Run("many at a time", func(t *testing.T) { concurrent(t, p, cases) })
}

func hasDuty(t *testing.T, p admission.Plugin) {
	if name := p.Name(); name == "" || p.Name() != name {
		t.Error("the name is empty or changes")
	}
	if _, err := admission.NewChain(p); err != nil {
		t.Error(err)
	}
}

// copes gives the plugin what a narrow match rule forgets: deletes, which carry
// no object, connections, and kinds that nobody has a type for.
func copes(t *testing.T, p admission.Plugin) {
	gvk := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	widget := func() *object.Object {
		return object.FromTree(object.Unstructured{GVK: gvk}, map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"},
		})
	}
	for _, op := range []admission.Operation{admission.Create, admission.Update, admission.Delete, admission.Connect} {
		for _, sub := range []string{"", "status", "scale"} {
			r := &admission.Request{
				Operation: op, Kind: gvk, Resource: gvk.GroupVersion().WithResource("widgets"), Subresource: sub, Name: "w", User: Someone(),
			}
			if op == admission.Create || op == admission.Update {
				r.Object = widget()
			}
			if op == admission.Update || op == admission.Delete {
				r.OldObject = widget()
			}
			ask(t.Context(), p, r)
		}
	}
}

// ask runs the plugin as the chain would; the outcome is the error.
func ask(ctx context.Context, p admission.Plugin, r *admission.Request) error {
	chain, err := admission.NewChain(p)
	if err != nil {
		return err
	}
	if err := chain.Mutate(ctx, r); err != nil {
		return err
	}
	return chain.Validate(ctx, r)
}

func (c Case) run(t *testing.T, p admission.Plugin) {
	r := c.Request()
	given, copied := snapshot(t, r.Object)
	err := ask(t.Context(), p, r)
	if given != nil && !reflect.DeepEqual(given, copied) {
		t.Error("the plugin wrote into the object that it was shown, which others share; it must hand a changed copy to Set")
	}
	if c.Denied != "" {
		if err == nil || !strings.Contains(err.Error(), c.Denied) {
			t.Errorf("error %v, want %q in it", err, c.Denied)
		}
		return
	}
	if err != nil {
		t.Fatalf("refused: %v", err)
	}
	if r.Object == nil {
		return
	}
	after, err := r.Object.Versioned()
	if err != nil {
		t.Fatal(err)
	}
	if c.Check != nil {
		c.Check(t, after)
	} else if !reflect.DeepEqual(after, copied) {
		t.Errorf("the object was changed to %+v", after)
	}
	c.again(t, p, r, after)
}

// again asks once more about the outcome: a mutator that was asked before must
// find nothing left to do, because the chain asks it again after a later change.
func (c Case) again(t *testing.T, p admission.Plugin, r *admission.Request, after runtime.Object) {
	was := after.DeepCopyObject()
	if err := ask(t.Context(), p, r); err != nil {
		t.Fatalf("asked again it refuses what it let through: %v", err)
	}
	is, err := r.Object.Versioned()
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(was, is) {
		t.Errorf("asked again it changes the object again, from %+v to %+v", was, is)
	}
}

func snapshot(t *testing.T, o *object.Object) (given, copied runtime.Object) {
	t.Helper()
	if o == nil {
		return nil, nil
	}
	v, err := o.Versioned()
	if err != nil {
		t.Fatal(err)
	}
	return v, v.DeepCopyObject()
}

func concurrent(t *testing.T, p admission.Plugin, cases []Case) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for range 8 {
		for _, c := range cases {
			wg.Go(func() {
				if err := ask(ctx, p, c.Request()); (err != nil) != (c.Denied != "") {
					t.Errorf("%s, among many: error %v, want %q", c.Name, err, c.Denied)
				}
			})
		}
	}
	wg.Wait()
}
