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

// tallied counts what objects tell their holder.
type tallied struct{ made, decoded int }

func (h *tallied) Made(*Object, int)    { h.made++ }
func (h *tallied) Decoded(*Object, int) { h.decoded++ }

// unpacking reads what it packed itself in its own way.
type unpacking struct{ *counting }

func (u unpacking) Unpack(b []byte, m string) (runtime.Object, error) {
	u.count("unpack")
	return u.Unstructured.Decode(b, m)
}

func TestAViewOfAPackedObjectIsPacked(t *testing.T) {
	c := newCounting()
	h := &tallied{}
	o := packed(t, c, `{"apiVersion":"v1","kind":"Thing","metadata":{"name":"a"}}`)
	o.SetHolder(h)
	v := FromStored(unpacking{c}, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v2", "kind": "Thing"}}, JSON)
	if err := o.KeepView(t, "v2", v); err != nil {
		t.Fatal(err)
	}
	if h.decoded != 1 || v.Packed(JSON) == nil || o.View("v2") != v {
		t.Errorf("the holder was told of %d decoded forms; %q is packed", h.decoded, v.Packed(JSON))
	}
	v.DropDecoded()
	clear(c.calls)
	if m, err := v.Versioned(); err != nil || m.GetObjectKind().GroupVersionKind().Version != "v2" {
		t.Errorf("%v %v", m, err)
	}
	if c.calls["unpack"] != 1 || c.calls["decode"] != 0 || h.decoded != 2 {
		t.Errorf("%v, %d forms were told", c.calls, h.decoded)
	}
}

func TestAnotherCodecSpeaksForTheSameBytes(t *testing.T) {
	c, other := newCounting(), newCounting()
	o := packed(t, c, `{"apiVersion":"v1","kind":"Thing","metadata":{"name":"a"}}`)
	as, err := o.As(other)
	if err != nil {
		t.Fatal(err)
	}
	clear(c.calls)
	if b, source := as.Packed(JSON), o.Packed(JSON); &b[0] != &source[0] {
		t.Error("the bytes are a copy")
	}
	if _, err := as.Tree(); err != nil || len(c.calls) != 0 || other.calls["decode"] != 1 {
		t.Errorf("%v: %v and %v were asked", err, c.calls, other.calls)
	}
	plain := FromVersioned(c, &unstructured.Unstructured{})
	if as, err = plain.As(other); err != nil || as.Codec() != Codec(other) {
		t.Errorf("%v", err)
	}
	if v, err := as.Versioned(); err != nil || v != plain.versioned {
		t.Errorf("an object that is not packed was copied: %v", err)
	}
	if _, err := (&Object{codec: c}).As(other); !errors.Is(err, ErrEmpty) {
		t.Errorf("an object of nothing: %v", err)
	}
}
