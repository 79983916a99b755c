// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/open-policy-agent/gatekeeper/v3/pkg/mutation/path/parser"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

// setter puts something at the end of a path.
type setter interface {
	// set changes a field of an object that is the walk's own.
	set(w *walk, parent map[string]any, field string) error
	// item is what takes the place of an item of a list that is addressed by key.
	item(w *walk) (map[string]any, error)
}

// assigned is spec.parameters.assign.
type assigned struct {
	Value        json.RawMessage `json:"value"`
	FromMetadata *struct {
		Field string `json:"field"`
	} `json:"fromMetadata"`
	ExternalData json.RawMessage `json:"externalData"`
}

// assign puts a value.
type assign struct {
	value any
	size  int    // of the value as JSON
	field string // of metadata, whose value it is instead
	// external is who is asked for the value instead.
	external *external
}

func (a *assign) set(w *walk, parent map[string]any, field string) error {
	if a.external != nil {
		return a.external.set(w, parent, field)
	}
	v, err := a.of(w)
	if err == nil {
		parent[field] = v
	}
	return err
}

func (a *assign) item(w *walk) (map[string]any, error) {
	v, err := a.of(w)
	if err != nil {
		return nil, err
	}
	item, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("what is put into a list by key is an object")
	}
	return item, nil
}

func (a *assign) of(w *walk) (any, error) {
	o := unstructured.Unstructured{Object: w.target.Object}
	switch a.field {
	case "name":
		return o.GetName(), nil
	case "namespace":
		return w.target.Namespace, nil
	}
	return runtime.DeepCopyJSONValue(a.value), w.budget.spend(a.size)
}

// value decodes a value as objects have them: whole numbers are int64.
func value(text json.RawMessage) (out any, err error) {
	err = utiljson.Unmarshal(text, &out)
	return out, err
}

// read reads what is assigned.
func (a *assigned) read() (*assign, error) {
	const at = "spec.parameters.assign"
	given := 0
	for _, is := range []bool{a != nil && len(a.Value) > 0 && !bytes.Equal(a.Value, []byte("null")), a != nil &&
		a.FromMetadata != nil, a != nil && len(a.ExternalData) > 0} {
		if is {
			given++
		}
	}
	if given != 1 {
		return nil, errors.New(at + ": one of value, fromMetadata and externalData has to be given")
	}
	switch {
	case len(a.ExternalData) > 0:
		e, err := readExternal(a.ExternalData)
		return &assign{external: e}, err
	case a.FromMetadata != nil:
		if f := a.FromMetadata.Field; f != "name" && f != "namespace" {
			return nil, fmt.Errorf("%s.fromMetadata.field: expected name or namespace, found %q", at, f)
		}
		return &assign{field: a.FromMetadata.Field}, nil
	}
	v, err := value(a.Value)
	if err != nil {
		return nil, fmt.Errorf("%s.value: %w", at, err)
	}
	return &assign{value: v, size: len(a.Value)}, nil
}

func (m *Mutator) takeAssign(p *parameters) error {
	if err := m.keepsKey(); err != nil {
		return err
	}
	a, err := p.Assign.read()
	if err != nil {
		return err
	}
	m.setter = a
	end, _ := m.last()
	list, ok := end.(*parser.List)
	if !ok {
		return nil
	}
	switch item, isObject := a.value.(map[string]any); {
	case list.Glob:
		return errors.New("spec.location: it ends with all items of a list, and one is assigned: name its key")
	case !isObject:
		return errors.New("spec.parameters.assign: what is put into a list by key is an object, as value")
	case item[list.KeyField] != list.KeyValue:
		return fmt.Errorf("spec.parameters.assign.value.%s: expected %v, the key in spec.location, found %v", list.KeyField, list.KeyValue, item[list.KeyField])
	}
	return nil
}

func (m *Mutator) takeMetadata(p *parameters) error {
	if len(m.path) != 3 || reference(m.path[0]) != "metadata" || reference(m.path[2]) == "" ||
		!slices.Contains([]string{"labels", "annotations"}, reference(m.path[1])) {
		return errors.New(`spec.location: expected one label or annotation, as in metadata.labels.owner or metadata.annotations."example.com/owner"`)
	}
	a, err := p.Assign.read()
	if err != nil {
		return err
	}
	if a.external != nil && a.external.source != username {
		return fmt.Errorf("spec.parameters.assign.externalData.dataSource: expected %s: AssignMetadata changes nothing that is there", username)
	}
	if _, text := a.value.(string); !text && a.field == "" && a.external == nil {
		return errors.New("spec.parameters.assign.value: expected a text")
	}
	m.setter = a
	return nil
}

// sets adds values to a list without an order, or takes them out of it.
type sets struct {
	prune  bool
	values []any
	size   int
}

func (m *Mutator) takeSet(p *parameters) error {
	if end, _ := m.last(); end.Type() == parser.ListNode {
		return errors.New("spec.location: it ends with items of a list; a ModifySet changes the list itself")
	}
	s := &sets{size: len(p.Values)}
	if p.Operation != nil {
		switch *p.Operation {
		case "merge":
		case "prune":
			s.prune = true
		default:
			return fmt.Errorf("spec.parameters.operation: expected merge or prune, found %q", *p.Operation)
		}
	}
	var v struct {
		FromList json.RawMessage `json:"fromList"`
	}
	if len(p.Values) > 0 {
		if err := tree.Strict(p.Values, &v, "spec.parameters.values"); err != nil {
			return err
		}
	}
	if len(v.FromList) > 0 {
		list, err := value(v.FromList)
		if err != nil {
			return fmt.Errorf("spec.parameters.values.fromList: %w", err)
		}
		var ok bool
		if s.values, ok = list.([]any); !ok && list != nil {
			return errors.New("spec.parameters.values.fromList: expected a list")
		}
	}
	m.setter, m.terminal = s, setNode
	return nil
}

func (s *sets) set(w *walk, parent map[string]any, field string) error {
	there, given := parent[field]
	if !given && s.prune {
		return nil
	}
	list, ok := there.([]any)
	if given && !ok {
		return fmt.Errorf("expected a list, found %s", kindOf(there))
	}
	if err := w.budget.work(len(list) * (len(s.values) + 1)); err != nil {
		return err
	}
	in := func(values []any, v any) bool {
		return slices.ContainsFunc(values, func(one any) bool { return reflect.DeepEqual(one, v) })
	}
	if s.prune {
		parent[field] = slices.DeleteFunc(slices.Clone(list), func(v any) bool { return in(s.values, v) })
		return nil
	}
	out := append(make([]any, 0, len(list)+len(s.values)), list...)
	for _, v := range s.values {
		if !in(out, v) {
			out = append(out, runtime.DeepCopyJSONValue(v))
		}
	}
	parent[field] = out
	return w.budget.spend(s.size)
}

func (*sets) item(*walk) (map[string]any, error) {
	return nil, errors.New("a ModifySet changes lists, not their items")
}

// kindOf names what stands somewhere.
func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "nothing"
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	case string:
		return "a text"
	case bool:
		return "a truth value"
	}
	return "a number"
}
