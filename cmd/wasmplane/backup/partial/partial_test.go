// SPDX-License-Identifier: Apache-2.0

package partial

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func read(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	var o map[string]any
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: o}
}

func TestWhatWasOfTheFormerLifeStaysBehind(t *testing.T) {
	for text, want := range map[string]string{
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, uid: u, resourceVersion: "7", generation: 2, creationTimestamp: x, managedFields: [{}], labels: {a: b},
		  annotations: {keep: me, pv.kubernetes.io/bind-completed: "yes"}}, data: {a: b}}`: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: {a: b}, annotations: {keep: me}}, data: {a: b}}`,
		`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ports: []}, status: {x: y}}`:                                                                             `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: []}}`,
		`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: None, clusterIPs: [None]}}`:                                                                                                                `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: None, clusterIPs: [None]}}`,
		`{apiVersion: v1, kind: Pod, metadata: {name: a, ownerReferences: [{uid: x}]}, spec: {nodeName: n, containers: []}}`:                                                                                               `{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: []}}`,
		`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: a}, spec: {volumeName: v, accessModes: [x]}}`:                                                                                                      `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: a}, spec: {accessModes: [x]}}`,
		`{apiVersion: batch/v1, kind: Job, metadata: {name: a}, spec: {selector: {matchLabels: {controller-uid: u}}, template: {metadata: {labels: {controller-uid: u, batch.kubernetes.io/controller-uid: u, job: a}}}}}`: `{apiVersion: batch/v1, kind: Job, metadata: {name: a}, spec: {template: {metadata: {labels: {job: a}}}}}`,
	} {
		got := read(t, text)
		clean(got)
		a, err := yaml.Marshal(got.Object)
		if err != nil {
			t.Fatal(err)
		}
		b, err := yaml.Marshal(read(t, want).Object)
		if err != nil {
			t.Fatal(err)
		}
		if string(a) != string(b) {
			t.Errorf("%s became\n%s\nexpected\n%s", text, a, b)
		}
	}
}

func TestWhatOthersMakeDoesNotComeBack(t *testing.T) {
	resource := func(name string) kind { k := kind{}; k.gvr.Resource = name; return k }
	for _, c := range []struct {
		resource, text string
		anew           bool
	}{
		{"pods", `{metadata: {name: a, ownerReferences: [{uid: x, controller: true}]}}`, true},
		{"pods", `{metadata: {name: a, ownerReferences: [{uid: x}]}}`, false},
		{"configmaps", `{metadata: {name: kube-root-ca.crt}}`, true},
		{"configmaps", `{metadata: {name: a}}`, false},
		{"serviceaccounts", `{metadata: {name: default}}`, true},
		{"secrets", `{metadata: {name: a}, type: kubernetes.io/service-account-token}`, true},
		{"secrets", `{metadata: {name: a}, type: Opaque}`, false},
	} {
		if got := madeAnew(resource(c.resource), read(t, c.text)); got != c.anew {
			t.Errorf("%s %s: %t", c.resource, c.text, got)
		}
	}
	if !transient(resource("events")) || transient(resource("deployments")) {
		t.Error("events come back, or deployments do not")
	}
}
