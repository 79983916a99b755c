// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
)

// counting puts another value each time: what no kind of mutator does by itself.
type counting struct{ n int64 }

func (c *counting) set(_ *walk, parent map[string]any, field string) error {
	c.n++
	parent[field] = c.n
	return nil
}

func (*counting) item(*walk) (map[string]any, error) { return nil, nil }

func TestMutatorsThatNeverComeToAnEndAreNamed(t *testing.T) {
	kind := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	m, err := Read(map[string]any{
		"apiVersion": "mutations.gatekeeper.sh/v1", "kind": "Assign", "metadata": map[string]any{"name": "clock"},
		"spec": map[string]any{
			"applyTo":  []any{map[string]any{"groups": []any{""}, "versions": []any{"v1"}, "kinds": []any{"Pod"}}},
			"location": "spec.n", "parameters": map[string]any{"assign": map[string]any{"value": int64(1)}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &counting{}
	m.setter = c
	_, err = NewSet([]*Mutator{m}).Mutate(&gatekeeper.Target{Object: map[string]any{"spec": map[string]any{}}, Kind: kind})
	if err == nil || !strings.Contains(err.Error(), "Assign clock") || !strings.Contains(err.Error(), "without an end") {
		t.Errorf("%v", err)
	}
	if c.n != 2 {
		t.Errorf("it was applied %d times; one mutator is applied twice at most", c.n)
	}
}
