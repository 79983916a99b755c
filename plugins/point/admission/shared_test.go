// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/plugins/abi"
)

// relabelled gives the object of a request a label, as a mutating plugin does.
func relabelled(t *testing.T, r *admission.Request) {
	t.Helper()
	o, err := r.Object.Versioned()
	if err != nil {
		t.Fatal(err)
	}
	changed, ok := o.DeepCopyObject().(*unstructured.Unstructured)
	if !ok {
		t.Fatalf("it is a %T", o)
	}
	changed.SetLabels(map[string]string{"team": "red"})
	r.Object.SetVersioned(changed)
}

// TestTheWholeIsWrittenOnceForAllPlugins, and again when one of them has changed it.
func TestTheWholeIsWrittenOnceForAllPlugins(t *testing.T) {
	r := request()
	seen := func() string {
		doc, err := newDocument(r)
		if err != nil {
			t.Fatal(err)
		}
		var w, alone abi.Writer
		all := abi.NewProjection(&abi.Hook{Encoding: abi.JSON})
		all.Write(&w, doc, "ConfigMap")
		doc.Object.Keeper = nil
		all.Write(&alone, doc, "ConfigMap")
		if string(w.Bytes()) != string(alone.Bytes()) {
			t.Errorf("what is kept is\n%s, and what is written\n%s", w.Bytes(), alone.Bytes())
		}
		return string(w.Bytes())
	}
	first := seen()
	kept, err := r.Object.Kept("plugins: the whole as JSON", func() ([]byte, error) {
		t.Error("the object was not kept")
		return nil, nil
	})
	if err != nil || !strings.Contains(first, `"object":`+string(kept)) {
		t.Errorf("%s is kept, of %s, %v", kept, first, err)
	}
	relabelled(t, r)
	if second := seen(); !strings.Contains(second, `"team":"red"`) {
		t.Errorf("after a change plugins see %s", second)
	}
}

// TestConditionsReadOnceWhatTheyShare, and again when the object was changed.
func TestConditionsReadOnceWhatTheyShare(t *testing.T) {
	r := request()
	read := func() map[string]any {
		vars, err := celVariables(r)
		if err != nil {
			t.Fatal(err)
		}
		return vars
	}
	first := read()
	if again := read(); reflect.ValueOf(first).Pointer() != reflect.ValueOf(again).Pointer() {
		t.Error("a second condition has variables of its own")
	}
	relabelled(t, r)
	if team(t, r) != "red" {
		t.Fatal("the object was not changed")
	}
	object, _ := read()["object"].(map[string]any)
	if labels, _, _ := unstructured.NestedStringMap(object, "metadata", "labels"); labels["team"] != "red" {
		t.Errorf("after a change conditions see %v", object)
	}
}
