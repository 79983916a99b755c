// SPDX-License-Identifier: Apache-2.0

package structural_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/structural"
)

type instant struct{ At time.Time }

func (i instant) IsZero() bool { return i.At.IsZero() }

// MarshalJSON implements json.Marshaler.
func (i instant) MarshalJSON() ([]byte, error) { return json.Marshal(i.At.Unix()) }

type Inner struct {
	Text string `json:"text,omitempty"`
}

type outer struct {
	Inner
	Next    *outer            `json:"next,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Ports   map[string]Inner  `json:"ports"`
	List    []Inner           `json:"list,omitempty"`
	When    instant           `json:"when,omitzero"`
	Any     any               `json:"any,omitempty"`
	Number  uint8             `json:"number"`
	Unnamed bool
	Hidden  string `json:"-"`
	private int
}

func TestSame(t *testing.T) {
	full := func() *outer {
		return &outer{
			Inner: Inner{"a"}, Next: &outer{Number: 1}, Labels: map[string]string{"a": "b"}, Ports: map[string]Inner{"p": {"q"}},
			List: []Inner{{"x"}, {"y"}}, When: instant{time.Unix(7, 0)}, Any: []any{"z"}, Unnamed: true,
		}
	}
	var types structural.Types
	s := types.Of(reflect.TypeFor[outer]())
	same := func(a, b *outer) bool { return s.Same(reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()) }
	for what, c := range map[string]struct {
		change func(*outer)
		same   bool
	}{
		"nothing":                   {func(*outer) {}, true},
		"what JSON does not show":   {func(o *outer) { o.Hidden, o.private = "x", 1 }, true},
		"an inlined member":         {func(o *outer) { o.Text = "b" }, false},
		"behind a pointer":          {func(o *outer) { o.Next.Number = 2 }, false},
		"a pointer":                 {func(o *outer) { o.Next = nil }, false},
		"a label":                   {func(o *outer) { o.Labels["a"] = "c" }, false},
		"another label":             {func(o *outer) { o.Labels = map[string]string{"c": "b"} }, false},
		"a map's value":             {func(o *outer) { o.Ports["p"] = Inner{"r"} }, false},
		"a map that is there":       {func(o *outer) { o.Ports = nil }, false},
		"an item":                   {func(o *outer) { o.List[1].Text = "z" }, false},
		"an item more":              {func(o *outer) { o.List = append(o.List, Inner{}) }, false},
		"what encodes itself":       {func(o *outer) { o.When = instant{time.Unix(8, 0)} }, false},
		"something of an interface": {func(o *outer) { o.Any = "z" }, false},
		"a number":                  {func(o *outer) { o.Number = 3 }, false},
		"a flag":                    {func(o *outer) { o.Unnamed = false }, false},
	} {
		changed := full()
		c.change(changed)
		if same(full(), changed) != c.same || same(changed, full()) != c.same {
			t.Errorf("%s: want same = %t", what, c.same)
		}
	}
}

func TestMembersAreThoseOfJSON(t *testing.T) {
	var types structural.Types
	s := types.Of(reflect.TypeFor[outer]())
	data, err := json.Marshal(outer{})
	if err != nil {
		t.Fatal(err)
	}
	var shown map[string]any
	if err := json.Unmarshal(data, &shown); err != nil {
		t.Fatal(err)
	}
	v := reflect.ValueOf(&outer{}).Elem()
	for i := range s.Members {
		m := &s.Members[i]
		if m.Name == "" {
			continue // inlined
		}
		if _, there := shown[m.Name]; there == m.LeftOut(v.Field(m.Index)) {
			t.Errorf("%s is in %s: %t", m.Name, data, there)
		}
	}
	if s != types.Of(reflect.TypeFor[outer]()) || s.Members[1].Type.Elem != s {
		t.Error("a type is described twice")
	}
}
