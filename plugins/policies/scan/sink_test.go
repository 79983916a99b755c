// SPDX-License-Identifier: Apache-2.0

package scan_test

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/wasmplane/wasmplane/plugins/policies/scan"
)

// TestReportsAreObjectsOfTheFormat that was chosen, and belong to what they are about.
func TestReportsAreObjectsOfTheFormat(t *testing.T) {
	constraints := schema.GroupVersionResource{Group: "constraints.gatekeeper.sh", Version: "v1beta1", Resource: "some"}
	for _, format := range []scan.Format{scan.PolicyReports, scan.OpenReports} {
		r := format.Resource("red")
		constraint := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "constraints.gatekeeper.sh/v1beta1", "kind": "Some", "metadata": map[string]any{"name": "one"}, "status": map[string]any{"kept": true},
		}}
		client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			map[schema.GroupVersionResource]string{r: "List", format.Resource(""): "List", constraints: "SomeList"})
		if _, err := client.Resource(constraints).Create(t.Context(), constraint, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		sink := scan.Objects{
			Client: client, Format: format,
			Resource: func(schema.GroupVersionKind) (schema.GroupVersionResource, error) { return constraints, nil },
		}
		a := &policy{name: "a", version: "1", against: "x"}
		w := newWorld(a)
		w.pods["x1"], w.pods["y"] = 1, 1
		s := scan.New(scan.Config{World: w, Sink: sink, Reports: 9})
		pass(t, s, "the first", a, 2)
		o, err := client.Resource(r).Namespace("red").Get(t.Context(), "uid-x1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		delete(o.Object["results"].([]any)[0].(map[string]any), "timestamp")
		text, err := json.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		kind, source := "Report", `"source":"wasmplane",`
		if format == scan.PolicyReports {
			kind, source = "PolicyReport", ""
		}
		want := `{"apiVersion":"` + r.GroupVersion().String() + `","kind":"` + kind + `","metadata":{` +
			`"labels":{"app.kubernetes.io/managed-by":"wasmplane"},"name":"uid-x1","namespace":"red",` +
			`"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x1","uid":"uid-x1"}]},` +
			`"results":[{"message":"a does not like x1","policy":"a","result":"fail","scored":true,"severity":"high","source":"test"}],` +
			`"scope":{"apiVersion":"v1","kind":"Pod","name":"x1","namespace":"red","uid":"uid-x1"},` + source +
			`"summary":{"error":0,"fail":1,"pass":0,"skip":0,"warn":0}}`
		if string(text) != want {
			t.Errorf("%s\nexpected\n%s", text, want)
		}
		// It is brought up to date, and goes.
		w.policies = append(w.policies, &policy{name: "b", version: "1", against: "x"})
		pass(t, s, "a policy more")
		o, err = client.Resource(r).Namespace("red").Get(t.Context(), "uid-x1", metav1.GetOptions{})
		if n, _, _ := unstructured.NestedInt64(o.Object, "summary", "fail"); err != nil || n != 2 {
			t.Errorf("after a policy more: %d fail, %v", n, err)
		}
		status, err := client.Resource(constraints).Get(t.Context(), "a", metav1.GetOptions{})
		if err == nil {
			t.Errorf("a constraint that is not there: %v", status)
		}
		w.policies = nil
		pass(t, s, "no policy")
		if list, err := client.Resource(r).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
			t.Errorf("without policies: %v, %v", list, err)
		}
		// A constraint shows totals itself.
		info := scan.Info{About: &scan.Reference{APIVersion: "constraints.gatekeeper.sh/v1beta1", Kind: "Some", Name: "one"}, Action: "deny"}
		if err := sink.Totals(t.Context(), info, 7, []scan.Violation{{
			Object: scan.Reference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "red", Name: "d"}, Message: "m",
		}}); err != nil {
			t.Fatal(err)
		}
		if status, err = client.Resource(constraints).Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		m, _ := status.Object["status"].(map[string]any)
		if at, _ := m["auditTimestamp"].(string); at == "" || m["kept"] != true {
			t.Errorf("status %v", m)
		}
		text, err = json.Marshal([]any{m["totalViolations"], m["violations"]})
		if want := `[7,[{"enforcementAction":"deny","group":"apps","kind":"Deployment","message":"m","name":"d","namespace":"red","version":"v1"}]]`; err != nil || string(text) != want {
			t.Errorf("%s, expected %s", text, want)
		}
	}
	if d := scan.Definitions(""); len(d) != 0 {
		t.Errorf("without a format: %v", d)
	}
	for _, d := range scan.Definitions(scan.OpenReports) {
		if d.Name != "reports.openreports.io" && d.Name != "clusterreports.openreports.io" {
			t.Errorf("definition %s", d.Name)
		}
	}
}
