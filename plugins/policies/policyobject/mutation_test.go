// SPDX-License-Identifier: Apache-2.0

package policyobject_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/mutation"
	"github.com/wasmplane/wasmplane/plugins/policies/policyobject"
)

const mutator = `{apiVersion: mutations.gatekeeper.sh/v1, kind: %s, metadata: {name: %s, uid: "%s", generation: 3}, spec: {
  %slocation: '%s', parameters: {assign: {value: x}}}}`

const ofPods = `applyTo: [{groups: [""], versions: [v1], kinds: [Pod]}], `

// enforced is what a status says in Gatekeeper's form, with the types of its errors.
func enforced(o *unstructured.Unstructured) string {
	by, _, _ := unstructured.NestedSlice(o.Object, "status", "byPod")
	out := ""
	for _, b := range by {
		m, _ := b.(map[string]any)
		out += fmt.Sprint(m["id"], " ", m["observedGeneration"], " ", cmp.Or(m["mutatorUID"], m["templateUID"]), " ", m["enforced"])
		errs, _ := m["errors"].([]any)
		for _, e := range errs {
			out += fmt.Sprint(" ", e.(map[string]any)["type"])
		}
	}
	return out
}

func TestMutatorsShowWhetherTheyAreInForce(t *testing.T) {
	within(t, func(w *world) {
		assign := policyobject.MutatorResource(mutation.Assign)
		w.put(assign, fmt.Sprintf(mutator, "Assign", "a", "u1", ofPods, "spec.containers[name: *].image"))
		if got := enforced(w.get(assign, "", "a")); got != "wasmplane 3 u1 true" {
			t.Errorf("alone: %q", got)
		}
		w.put(assign, fmt.Sprintf(mutator, "Assign", "b", "u2", ofPods, "spec.containers.image"))
		for name, want := range map[string]string{
			"a": "wasmplane 3 u1 false ErrConflictingSchema",
			"b": "wasmplane 3 u2 false ErrConflictingSchema",
		} {
			o := w.get(assign, "", name)
			if got := enforced(o); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
			if got := message(o); !strings.Contains(got, "none of them is applied: Assign a, Assign b") {
				t.Errorf("%s: %q", name, got)
			}
		}
		w.remove(assign, "", "b")
		if got := enforced(w.get(assign, "", "a")); got != "wasmplane 3 u1 true" {
			t.Errorf("alone again: %q", got)
		}
		metadata := policyobject.MutatorResource(mutation.AssignMetadata) // as another cluster's store may have it
		w.put(metadata, fmt.Sprintf(mutator, "AssignMetadata", "m", "u3", "", "metadata.name"))
		if got := message(w.get(metadata, "", "m")); !strings.Contains(got, "spec.location: expected one label or annotation") {
			t.Errorf("one that is wrong: %q", got)
		}
	})
}

func TestExpansionTemplatesShowWhetherTheyAreInForce(t *testing.T) {
	const text = `{apiVersion: expansion.gatekeeper.sh/v1beta1, kind: ExpansionTemplate, metadata: {name: %s, uid: "%s", generation: 1}, spec: {
  applyTo: [{groups: [g], versions: [v1], kinds: [%s]}], templateSource: spec.template, generatedGVK: {group: g, version: v1, kind: %s}}}`
	within(t, func(w *world) {
		r := policyobject.ExpansionTemplates()
		w.put(r, fmt.Sprintf(text, "a", "u1", "A", "B"))
		if got := enforced(w.get(r, "", "a")); got != "wasmplane 1 u1 true" {
			t.Errorf("alone: %q", got)
		}
		w.put(r, fmt.Sprintf(text, "b", "u2", "B", "A"))
		if got := enforced(w.get(r, "", "a")); got != "wasmplane 1 u1 false ErrTemplateCycle" {
			t.Errorf("in a cycle: %q", got)
		}
	})
}

func TestAMutatorTakesTheRightsToChangeWhatItChanges(t *testing.T) {
	check := policyobject.Check{Enabled: []string{policyobject.Gatekeeper}}
	for text, want := range map[string]string{
		fmt.Sprintf(mutator, "Assign", "a", "u", ofPods,
			"spec.x"): "get /pods; create /pods; update /pods; ",
		fmt.Sprintf(mutator, "AssignMetadata", "a", "u", "match: {kinds: [{apiGroups: [apps], kinds: [Deployment]}]}, ",
			"metadata.labels.x"): "get apps/deployments; create apps/deployments; update apps/deployments; ",
		fmt.Sprintf(mutator, "AssignMetadata", "a", "u", "",
			"metadata.labels.x"): "get */*; create */*; update */*; ",
		fmt.Sprintf(mutator, "Assign", "a", "u", ofPods,
			"metadata.labels.x"): "AssignMetadata adds labels",
	} {
		o := parse(t, text)
		if !check.Handles(policyobject.MutatorResource(o.GetKind()).GroupResource()) {
			t.Fatalf("%s is not checked", o.GetKind())
		}
		_, needs, err := check.Check(t.Context(), o)
		got := ""
		for _, n := range needs {
			got += n.Attributes.Verb + " " + n.Attributes.Group + "/" + n.Attributes.Resource + "; "
		}
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestKindsOfMutatorsAreServedAsGatekeeperServesThem(t *testing.T) {
	want := map[string]string{
		"assign.mutations.gatekeeper.sh": "v1 v1beta1 v1alpha1", "assignmetadata.mutations.gatekeeper.sh": "v1 v1beta1 v1alpha1",
		"modifyset.mutations.gatekeeper.sh": "v1 v1beta1 v1alpha1", "assignimage.mutations.gatekeeper.sh": "v1alpha1",
		"expansiontemplate.expansion.gatekeeper.sh": "v1beta1 v1alpha1",
	}
	for _, d := range policyobject.Definitions([]string{policyobject.Gatekeeper}) {
		versions, known := want[d.Name]
		if !known {
			continue
		}
		delete(want, d.Name)
		var got []string
		for i, v := range d.Spec.Versions {
			got = append(got, v.Name)
			if v.Storage != (i == 0) || len(v.Schema.OpenAPIV3Schema.Properties["spec"].Properties) < 3 {
				t.Errorf("%s %s: stored %t, %v", d.Name, v.Name, v.Storage, v.Schema.OpenAPIV3Schema.Properties["spec"])
			}
		}
		if strings.Join(got, " ") != versions {
			t.Errorf("%s: %q, want %q", d.Name, got, versions)
		}
	}
	if len(want) > 0 {
		t.Errorf("not served: %v", want)
	}
}
