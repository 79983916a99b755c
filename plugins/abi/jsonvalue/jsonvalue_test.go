// SPDX-License-Identifier: Apache-2.0

package jsonvalue_test

import (
	"encoding/json"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/wasmplane/wasmplane/plugins/abi/jsonvalue"
)

func pod() *corev1.Pod {
	p := &corev1.Pod{}
	p.Name, p.Labels = "web", map[string]string{"a": "1"}
	p.CreationTimestamp = metav1.Unix(1700000000, 0)
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Controller: new(true)}}
	p.Spec.HostNetwork = true
	p.Spec.Containers = []corev1.Container{{
		Name:          "a",
		Resources:     corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1500m")}},
		LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}}},
	}}
	return p
}

// plain is a value as its JSON says it.
func plain(t *testing.T, v reflect.Value) (out any) {
	t.Helper()
	if v, _ = jsonvalue.Open(v); !v.IsValid() {
		return nil
	}
	data, err := json.Marshal(v.Interface())
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// Every member of the JSON is found under its name, and nothing else is.
func TestMembersAreThoseOfTheJSON(t *testing.T) {
	var same func(path string, v reflect.Value, want any)
	same = func(path string, v reflect.Value, want any) {
		switch want := want.(type) {
		case map[string]any:
			if !jsonvalue.IsObject(v) {
				t.Errorf("%s is no object", path)
				return
			}
			for name, w := range want {
				child, ok := jsonvalue.Get(v, name)
				if !ok {
					t.Errorf("%s.%s is not found", path, name)
					continue
				}
				same(path+"."+name, child, w)
			}
			opened, _ := jsonvalue.Open(v)
			if opened.Kind() != reflect.Struct {
				return
			}
			for _, f := range jsonvalue.InfoOf(opened.Type()).Fields {
				_, ok := jsonvalue.Get(v, f.Name)
				if _, wanted := want[f.Name]; ok != wanted {
					t.Errorf("%s.%s: found %v, in the JSON %v", path, f.Name, ok, wanted)
				}
			}
		case []any:
			c := jsonvalue.Container(v)
			if !jsonvalue.IsArray(c) || c.Len() != len(want) {
				t.Errorf("%s is no array of %d", path, len(want))
				return
			}
			for i := range want {
				same(path+"[]", c.Index(i), want[i])
			}
		default:
			if got := plain(t, v); !reflect.DeepEqual(got, want) {
				t.Errorf("%s is %v, want %v", path, got, want)
			}
		}
	}
	p := pod()
	same("pod", reflect.ValueOf(p), plain(t, reflect.ValueOf(p)))
}

// A decoded object knows neither its kind nor its apiVersion; who holds it does.
func TestAnObjectHasItsKind(t *testing.T) {
	o := &jsonvalue.Object{Object: pod(), GVK: corev1.SchemeGroupVersion.WithKind("Pod")}
	for name, want := range map[string]string{"kind": "Pod", "apiVersion": "v1"} {
		if v, ok := jsonvalue.Get(reflect.ValueOf(o), name); !ok || v.String() != want {
			t.Errorf("%s is %v, want %s", name, v, want)
		}
		if _, ok := jsonvalue.Get(reflect.ValueOf(pod()), name); ok {
			t.Errorf("a pod by itself has a member %s", name)
		}
	}
	u := &unstructured.Unstructured{Object: map[string]any{"kind": "Other"}}
	if v, ok := jsonvalue.Get(reflect.ValueOf(&jsonvalue.Object{Object: u}), "kind"); !ok || v.Elem().String() != "Other" {
		t.Errorf("the kind of a tree is %v", v)
	}
}

func TestNilHasNoMembers(t *testing.T) {
	for _, v := range []any{(*corev1.Pod)(nil), nil, map[string]any(nil), "text", map[int]string{1: "x"}} {
		if got, ok := jsonvalue.Get(reflect.ValueOf(v), "metadata"); ok {
			t.Errorf("%T has %v", v, got)
		}
	}
}
