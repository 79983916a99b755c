// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// counting counts the conversions that a codec is asked for.
type counting struct {
	Unstructured
	mu    sync.Mutex
	calls map[string]int
}

func newCounting() *counting {
	return &counting{Unstructured: Unstructured{GVK: schema.GroupVersionKind{Version: "v1", Kind: "Thing"}}, calls: map[string]int{}}
}

func (c *counting) count(what string) {
	c.mu.Lock()
	c.calls[what]++
	c.mu.Unlock()
}

func (c *counting) Decode(b []byte, m string) (runtime.Object, error) {
	c.count("decode")
	return c.Unstructured.Decode(b, m)
}

func (c *counting) Internal(_ runtime.Object) (runtime.Object, error) {
	c.count("internal")
	return &corev1.Pod{}, nil
}

func (c *counting) Encode(o runtime.Object, m string) ([]byte, error) {
	c.count("encode")
	return c.Unstructured.Encode(o, m)
}

func TestEachFormIsMadeOnce(t *testing.T) {
	c := newCounting()
	o := packed(t, c, `{"apiVersion":"v1","kind":"Thing","metadata":{"name":"a"}}`)
	clear(c.calls)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for _, form := range []func() error{
				func() error { _, err := o.Versioned(); return err },
				func() error { _, err := o.Internal(); return err },
				func() error { _, err := o.Tree(); return err },
				func() error { _, err := o.Encoded(JSON); return err },
			} {
				if err := form(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if c.calls["decode"] != 1 || c.calls["internal"] != 1 || c.calls["encode"] != 0 { // what it is packed into is its encoding
		t.Errorf("%v", c.calls)
	}
	if m, err := o.Meta(); err != nil || m.GetName() != "a" {
		t.Error(m, err)
	}
}

func TestAMutationDropsWhatItOutdates(t *testing.T) {
	c := newCounting()
	o := FromTree(c, map[string]any{"apiVersion": "v1", "kind": "Thing", "metadata": map[string]any{"name": "a"}})
	before, err := o.Encoded(JSON)
	if err != nil {
		t.Fatal(err)
	}
	changed, err := o.Copy()
	if err != nil {
		t.Fatal(err)
	}
	v, _ := changed.Versioned()
	v.(*unstructured.Unstructured).SetName("b")
	o.SetVersioned(v)
	after, err := o.Encoded(JSON)
	if err != nil || string(before) == string(after) {
		t.Errorf("%s %v", after, err)
	}
	tree, _ := o.Tree()
	if tree["metadata"].(map[string]any)["name"] != "b" {
		t.Errorf("%v", tree)
	}
	o.DropEncoded()
	if _, err := o.Encoded(JSON); err != nil || c.calls["encode"] != 3 {
		t.Error(err, c.calls)
	}
}

func TestNothingHasNoForm(t *testing.T) {
	o := FromVersioned(newCounting(), nil)
	if _, err := o.Versioned(); !errors.Is(err, ErrEmpty) {
		t.Error(err)
	}
	if _, err := o.Internal(); !errors.Is(err, ErrEmpty) {
		t.Error(err)
	}
	bad := packed(t, newCounting(), `{"apiVersion":"v1","kind":"Thing"}`)
	bad.source = []byte("{")
	if _, err := bad.Versioned(); err == nil {
		t.Error("broken JSON was decoded")
	}
}

// packed is an object that has nothing but its encoding.
func packed(t *testing.T, c Codec, data string) *Object {
	t.Helper()
	v, err := c.Decode([]byte(data), JSON)
	if err != nil {
		t.Fatal(err)
	}
	o := FromStored(c, v, JSON)
	if err := o.Pack(); err != nil {
		t.Fatal(err)
	}
	o.DropDecoded()
	return o
}

func TestViewsAreKeptBesideAnObjectForOneOwner(t *testing.T) {
	o := FromTree(newCounting(), map[string]any{"a": "b"})
	other := FromTree(newCounting(), map[string]any{"c": "d"})
	o.KeepView("one", 1, other)
	o.KeepView("one", 2, o)
	if o.View(1) != other || o.View(2) != o || o.View(3) != nil {
		t.Error("a view was not found")
	}
	o.KeepView("two", 2, other)
	if o.View(1) != nil || o.View(2) != other {
		t.Error("views of an owner who was replaced are still there")
	}
	for i := range 3 * maxViews {
		o.KeepView("two", i, other)
	}
	if o.View(0) != nil || o.View(3*maxViews-1) != other || len(o.views) != maxViews {
		t.Errorf("%d views are kept", len(o.views))
	}
	o.SetVersioned(&unstructured.Unstructured{Object: map[string]any{}})
	if o.View(3*maxViews-1) != nil {
		t.Error("a view outlived the object that it was made of")
	}
}
