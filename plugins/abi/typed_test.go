// SPDX-License-Identifier: Apache-2.0

package abi_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/wasmplane/wasmplane/plugins/abi"
)

func somePod() *corev1.Pod {
	yes, uid := true, int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web", Namespace: "default", Labels: map[string]string{"b": "2", "a": "1"},
			CreationTimestamp: metav1.Unix(1700000000, 0),
			OwnerReferences:   []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "rs", Controller: &yes}},
			ManagedFields:     []metav1.ManagedFieldsEntry{{Manager: "x", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{}}`)}},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{
				{
					Name: "a", Image: "a:1", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1500m")}},
					ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("http")}}},
					LivenessProbe:  &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}}},
				},
				{Name: "b", SecurityContext: &corev1.SecurityContext{Privileged: &yes, RunAsUser: &uid}},
			},
			HostNetwork: true,
		},
	}
}

// TestStructsReadAsTheirJSON: what a plugin sees of a decoded object is what the
// API's JSON of it says.
func TestStructsReadAsTheirJSON(t *testing.T) {
	p := somePod()
	gvk := corev1.SchemeGroupVersion.WithKind("Pod")
	h, err := hook(t, nil, nil, abi.JSON)
	if err != nil {
		t.Fatal(err)
	}
	w := &abi.Writer{}
	abi.NewProjection(h).Write(w, &abi.Object{Object: p, GVK: gvk}, "Pod")
	withKind := p.DeepCopy()
	withKind.SetGroupVersionKind(gvk)
	if is, want := plain(t, json.RawMessage(w.Bytes())), plain(t, withKind); !reflect.DeepEqual(is, want) {
		t.Errorf("got  %v\nwant %v", is, want)
	}
}

// TestStructsAndTreesProjectAlike holds both ways of reading against each other.
func TestStructsAndTreesProjectAlike(t *testing.T) {
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(somePod())
	if err != nil {
		t.Fatal(err)
	}
	fields := []string{
		"object.metadata.labels", "object.metadata.labels.a", "object.metadata.creationTimestamp", "object.metadata.deletionTimestamp",
		"object.spec.containers[*].resources.requests.cpu", "object.spec.containers[*].securityContext.privileged",
		"object.spec.containers[*].securityContext.runAsUser", "object.spec.containers[*].readinessProbe.httpGet.port",
		"object.spec.containers[*].livenessProbe.httpGet.port", "object.spec.hostNetwork", "object.spec.hostPID", "object.spec",
		"object.metadata.managedFields[*].fieldsV1", "object.metadata.ownerReferences[*].controller", "object.status", "object.kind",
	}
	type document struct {
		Object *abi.Object `json:"object"`
	}
	for _, e := range []abi.Encoding{abi.JSON, abi.Flat} {
		for _, f := range fields {
			h, err := hook(t, []string{f}, nil, e)
			if err != nil {
				t.Fatal(err)
			}
			var typed, untyped abi.Writer
			gvk := corev1.SchemeGroupVersion.WithKind("Pod")
			abi.NewProjection(h).Write(&typed, &document{&abi.Object{Object: somePod(), GVK: gvk}}, "Pod")
			u := &unstructured.Unstructured{Object: tree}
			u.SetGroupVersionKind(gvk)
			abi.NewProjection(h).Write(&untyped, &document{&abi.Object{Object: u, GVK: gvk}}, "Pod")
			if e == abi.JSON {
				if is, want := plain(t, json.RawMessage(typed.Bytes())), plain(t, json.RawMessage(untyped.Bytes())); !reflect.DeepEqual(is, want) {
					t.Errorf("%s: struct %s, tree %s", f, typed.Bytes(), untyped.Bytes())
				}
			} else if f != "object.spec" && f != "object.status" && string(typed.Bytes()) != string(untyped.Bytes()) { // their keys differ in order
				t.Errorf("%s: struct %q, tree %q", f, typed.Bytes(), untyped.Bytes())
			}
		}
	}
}

// TestStructsAndTreesPatchAlike: the short way over the struct gives what the
// way over a JSON tree gives.
func TestStructsAndTreesPatchAlike(t *testing.T) {
	h, err := hook(t, nil, nil, abi.JSON)
	if err != nil {
		t.Fatal(err)
	}
	value := func(v string) json.RawMessage { return json.RawMessage(v) }
	for _, ops := range [][]abi.PatchOp{
		{{Op: "add", Path: "/metadata/annotations/x", Value: value(`"y"`)}},
		{{Op: "add", Path: "/@podSpec/containers/-", Value: value(`{"name":"side","image":"s:1"}`)}},
		{{Op: "add", Path: "/spec/containers/1", Value: value(`{"name":"mid"}`)}},
		{{Op: "add", Path: "/spec/containers/[name=b]/image", Value: value(`"b:2"`)}},
		{{Op: "add", Path: "/spec/containers/[name=c]/image", Value: value(`"c:2"`)}},
		{{Op: "replace", Path: "/spec/containers/[name=a]/resources/requests/cpu", Value: value(`"2"`)}},
		{{Op: "remove", Path: "/spec/containers/0"}, {Op: "remove", Path: "/spec/hostNetwork"}},
		{{Op: "add", Path: "/spec/securityContext/runAsNonRoot", Value: value(`true`)}},
		{{Op: "remove", Path: "/metadata/labels/a"}, {Op: "replace", Path: "/metadata/labels/b", Value: value(`"3"`)}},
		{{Op: "add", Path: "/spec/nodeSelector", Value: value(`{"disk":"ssd"}`)}},
	} {
		p := somePod()
		if err := h.PatchStruct(p, "Pod", ops); err != nil {
			t.Errorf("%+v: %v", ops, err)
			continue
		}
		tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(somePod())
		if err != nil {
			t.Fatal(err)
		}
		if tree, err = h.Patch(tree, "Pod", ops); err != nil {
			t.Fatal(err)
		}
		var other corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(tree, &other); err != nil {
			t.Fatal(err)
		}
		if is, want := plain(t, p), plain(t, &other); !reflect.DeepEqual(is, want) {
			t.Errorf("%+v:\nstruct %v\ntree   %v", ops, is, want)
		}
	}
	for _, op := range []abi.PatchOp{
		{Op: "add", Path: "/spec/contaners/-", Value: value(`{}`)},
		{Op: "add", Path: "/spec/containers/-", Value: value(`{"nmae":"x"}`)},
		{Op: "replace", Path: "/spec/hostPID", Value: value(`true`)},
		{Op: "add", Path: "/spec/hostPID", Value: value(`"yes"`)},
		{Op: "remove", Path: "/spec/containers/9"},
	} {
		if err := h.PatchStruct(somePod(), "Pod", []abi.PatchOp{op}); err == nil || errors.Is(err, abi.ErrNotTyped) {
			t.Errorf("%+v: error %v", op, err)
		}
	}
}
