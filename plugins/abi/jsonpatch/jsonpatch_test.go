// SPDX-License-Identifier: Apache-2.0

package jsonpatch_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/wasmplane/wasmplane/plugins/abi/jsonpatch"
)

func tree(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func tokens(path string) []string { return strings.Split(path, "/") }

func TestOperationsOnTrees(t *testing.T) {
	for _, c := range []struct {
		name, doc string
		op        jsonpatch.Op
		want, err string
	}{
		{"add makes what is missing", `{}`, jsonpatch.Op{Name: "add", Path: tokens("a/[name=x]/b"), Value: true}, `{"a":[{"name":"x","b":true}]}`, ""},
		{"add replaces the item of a key", `{"a":[{"name":"x","b":false}]}`, jsonpatch.Op{Name: "add", Path: tokens("a/[name=x]/b"), Value: true}, `{"a":[{"name":"x","b":true}]}`, ""},
		{"add in between", `[1,3]`, jsonpatch.Op{Name: "add", Path: tokens("1"), Value: "2"}, `[1,"2",3]`, ""},
		{"add behind the end", `[1]`, jsonpatch.Op{Name: "add", Path: tokens("2"), Value: "2"}, "", "index 2 is behind the end"},
		{"replace what is missing", `{}`, jsonpatch.Op{Name: "replace", Path: tokens("a"), Value: "x"}, "", "there is nothing"},
		{"remove", `{"a":[1,2]}`, jsonpatch.Op{Name: "remove", Path: tokens("a/0")}, `{"a":[2]}`, ""},
		{"move", `{"a":{"b":1}}`, jsonpatch.Op{Name: "move", From: tokens("a/b"), Path: tokens("c")}, `{"a":{},"c":1}`, ""},
		{"move into itself", `{"a":{"b":1}}`, jsonpatch.Op{Name: "move", From: tokens("a"), Path: tokens("a/b")}, "", "into itself"},
		{"copy", `{"a":{"b":1}}`, jsonpatch.Op{Name: "copy", From: tokens("a"), Path: tokens("c")}, `{"a":{"b":1},"c":{"b":1}}`, ""},
		{"a test that fails", `{"a":1}`, jsonpatch.Op{Name: "test", Path: tokens("a"), Value: "1"}, "", "the test failed"},
		{"no operation", `{}`, jsonpatch.Op{Name: "merge", Path: tokens("a")}, "", "unknown operation"},
	} {
		room := jsonpatch.MostCopied
		got, err := jsonpatch.Tree(tree(t, c.doc), &c.op, &room)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %q", c.name, err, c.err)
			}
		} else if err != nil || !reflect.DeepEqual(got, tree(t, c.want)) {
			t.Errorf("%s: %v (%v), want %s", c.name, got, err, c.want)
		}
	}
}

// Each copy can double what is there.
func TestCopiesAreBounded(t *testing.T) {
	doc, room := tree(t, `{"a":[1]}`), jsonpatch.MostCopied
	for range 40 {
		var err error
		if doc, err = jsonpatch.Tree(doc, &jsonpatch.Op{Name: "copy", From: tokens("a"), Path: tokens("a/-")}, &room); err != nil {
			if !strings.Contains(err.Error(), "copies more than") {
				t.Error(err)
			}
			return
		}
	}
	t.Error("40 copies that double are not bounded")
}

func TestGoValues(t *testing.T) {
	pod := &corev1.Pod{}
	set := func(name, path, value string) error {
		return jsonpatch.Struct(reflect.ValueOf(pod).Elem(), name, tokens(path), json.RawMessage(value))
	}
	if err := errors.Join(set("add", "spec/containers/[name=web]/image", `"app:1"`), set("add", "metadata/labels/team", `"a"`)); err != nil {
		t.Fatal(err)
	}
	if c := pod.Spec.Containers; len(c) != 1 || c[0].Name != "web" || c[0].Image != "app:1" || pod.Labels["team"] != "a" {
		t.Errorf("%+v", pod)
	}
	if err := set("remove", "spec/containers/[name=other]", ""); err == nil || !strings.Contains(err.Error(), "no item") {
		t.Errorf("an item that is not there: %v", err)
	}
	pod.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("1")}
	if err := set("add", "spec/overhead/cpu/d", `"x"`); !errors.Is(err, jsonpatch.ErrNotTyped) {
		t.Errorf("a type with an encoding of its own: %v", err)
	}
}
