// SPDX-License-Identifier: Apache-2.0

package policies_test

import (
	"bytes"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/wasmplane/wasmplane/plugins/policies"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
)

type served struct{}

func (served) Resource(k schema.GroupKind) (string, bool) { return "pods", k.Kind == "Pod" }

// FuzzObjects: whatever stands in the objects of other projects, they are read or refused. What a policy of a namespace
// becomes is about that namespace alone.
func FuzzObjects(f *testing.F) {
	for _, seed := range []string{
		`{"apiVersion":"policies.kyverno.io/v1","kind":"NamespacedValidatingPolicy","metadata":{"name":"p","namespace":"red"},"spec":{"matchConstraints":{"namespaceSelector":{"matchLabels":{"a":"b"}},"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"],"scope":"*"}]},"validations":[{"expression":"object.spec.hostPID == false"}]}}`,
		`{"apiVersion":"policies.kyverno.io/v1","kind":"NamespacedMutatingPolicy","metadata":{"name":"p","namespace":"red"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}]},"mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{}"}}],"autogen":{"podControllers":{"controllers":["jobs"]}}}}`,
		`{"apiVersion":"policies.kyverno.io/v1","kind":"PolicyException","metadata":{"name":"e","namespace":"red"},"spec":{"policyRefs":[{"name":"p","kind":"ValidatingPolicy"}],"matchConditions":[{"name":"c","expression":"true // x"}],"expiresAt":"2030-01-01T00:00:00Z"}}`,
		`{"apiVersion":"templates.gatekeeper.sh/v1","kind":"ConstraintTemplate","metadata":{"name":"some"},"spec":{"crd":{"spec":{"names":{"kind":"Some"},"validation":{"openAPIV3Schema":{"type":"object"}}}},"targets":[{"target":"admission.k8s.gatekeeper.sh","rego":"package some"}]}}`,
		`{"apiVersion":"constraints.gatekeeper.sh/v1beta1","kind":"Some","metadata":{"name":"one"},"spec":{"match":{"kinds":[{"apiGroups":[""],"kinds":["Pod"]}]},"enforcementAction":"warn","parameters":{}}}`,
		`{"apiVersion":"config.gatekeeper.sh/v1alpha1","kind":"Config","metadata":{"name":"config"},"spec":{"sync":{"syncOnly":[{"version":"v1","kind":"Pod"}]},"match":[{"processes":["*"],"excludedNamespaces":["a*"]}]}}`,
		`{"apiVersion":"policies.kubewarden.io/v1","kind":"AdmissionPolicy","metadata":{"name":"p","namespace":"red"},"spec":{"module":"ghcr.io/a/b@sha256:0000000000000000000000000000000000000000000000000000000000000000","rules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"]}]}}`,
	} {
		f.Add([]byte(seed))
	}
	template := `{"apiVersion":"templates.gatekeeper.sh/v1","kind":"ConstraintTemplate","metadata":{"name":"some"},"spec":{"crd":{"spec":{"names":{"kind":"Some"}}},"targets":[{"target":"admission.k8s.gatekeeper.sh","rego":"package some"}]}}`
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<14 {
			return
		}
		var all []*unstructured.Unstructured
		for _, text := range [][]byte{[]byte(template), data} {
			var tree map[string]any
			if utiljson.Unmarshal(text, &tree) != nil || tree == nil {
				return
			}
			all = append(all, &unstructured.Unstructured{Object: tree})
		}
		found, _, _ := policies.Translate(all, served{}) // what is wrong is an error
		for _, p := range found {
			if p.Name == "" || p.Policy == nil {
				t.Errorf("%s: a plugin without a name, or a policy", data)
			}
		}
		if e, err := kyverno.ReadException(all[1].Object); err == nil && e.Condition().Expression == "" {
			t.Errorf("%s: an exception of everything by nothing", data)
		}
		o, err := kyverno.Read(all[1].Object)
		if err != nil || !bytes.Contains(data, []byte("Namespaced")) {
			return
		}
		if !kyverno.Namespaced(all[1].GetKind()) {
			return
		}
		for _, p := range o.Validating {
			within(t, data, p.Spec.MatchConstraints.NamespaceSelector, all[1].GetNamespace(), p.Spec.MatchConstraints.ResourceRules)
		}
		for _, p := range o.Mutating {
			within(t, data, p.Spec.MatchConstraints.NamespaceSelector, all[1].GetNamespace(), p.Spec.MatchConstraints.ResourceRules)
		}
	})
}

// within fails where something outside of a namespace is matched.
func within(t *testing.T, data []byte, s *metav1.LabelSelector, namespace string, rules []admissionregistrationv1.NamedRuleWithOperations) {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return // it matches nothing
	}
	for _, other := range []labels.Set{nil, {"kubernetes.io/metadata.name": namespace + "x"}} {
		if selector.Matches(other) {
			t.Errorf("%s: a namespace with the labels %v is matched", data, other)
		}
	}
	for _, r := range rules {
		if r.Scope == nil || *r.Scope != admissionregistrationv1.NamespacedScope {
			t.Errorf("%s: what is in no namespace is matched", data)
		}
	}
}
