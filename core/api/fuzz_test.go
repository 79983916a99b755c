// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/api/requestoptions"
)

// FuzzQuery: a query's options are an error, or selectors that can be asked and written.
func FuzzQuery(f *testing.F) {
	c := newContract(f)
	pods, roles := rowOf(f, c, "", "pods"), rowOf(f, c, "rbac.authorization.k8s.io", "roles")
	for _, q := range []string{
		"labelSelector=a%3Db%2Cc+in+%28d%2Ce%29%2C%21f&limit=5", "fieldSelector=spec.nodeName%3Da%2Cmetadata.name%21%3Db",
		"resourceVersion=5&resourceVersionMatch=Exact",
		"watch=1&timeoutSeconds=9999999999999", "labelSelector=a+in+%28", "continue=xx", "sendInitialEvents=true",
	} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, text string) {
		q, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		_, _ = requestoptions.Get(q)
		_, _ = requestoptions.Create(q)
		_, _ = requestoptions.Update(q)
		_, _ = requestoptions.Table(q)
		_, _ = requestoptions.Patch(q, types.MergePatchType)
		_, _ = requestoptions.Delete(q, nil, "")
		o, err := requestoptions.List(q)
		if err != nil {
			return
		}
		if s := o.LabelSelector; s != nil {
			s.Matches(labels.Set{"a": "b"})
			if _, err := labels.Parse(s.String()); err != nil {
				t.Errorf("%q is written as %q: %v", text, s, err)
			}
		}
		for _, r := range []*Resource{pods, roles} {
			if s, err := c.FieldSelector(r, "v1", o.FieldSelector); err == nil {
				s.Matches(fields.Set{"metadata.name": "a"})
			}
		}
	})
}

// FuzzStrategicMerge: whatever a patch says, it is an error or makes an object that can be
// written, and the object that it was made of stays as it was.
func FuzzStrategicMerge(f *testing.F) {
	c := newContract(f)
	r := rowOf(f, c, "", "pods")
	for _, s := range []string{
		`{"spec":{"containers":[{"name":"a","image":"b"}]}}`, `{"spec":{"containers":[{"name":"a","$patch":"delete"}]}}`, `{"$patch":"replace"}`,
		`{"spec":{"$setElementOrder/containers":[{"name":"a"}]}}`,
		`{"metadata":{"finalizers":["x"],"$deleteFromPrimitiveList/finalizers":["y"]}}`,
		`{"spec":{"$retainKeys":["containers"]}}`, `{"spec":null}`, `{"spec":{"containers":[[]]}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var patch map[string]any
		if json.Unmarshal(data, &patch) != nil {
			return
		}
		live := &corev1.Pod{}
		if err := json.Unmarshal([]byte(podJSON), live); err != nil {
			t.Fatal(err)
		}
		live.APIVersion, live.Kind = "v1", "Pod"
		before, _ := json.Marshal(live)
		o, _, err := c.StrategicMerge(r, "v1", live, patch, true)
		if after, _ := json.Marshal(live); string(after) != string(before) {
			t.Errorf("the object was changed:\n%s\n%s", before, after)
		}
		if err != nil {
			return
		}
		if _, err := json.Marshal(o); err != nil {
			t.Errorf("cannot be written: %v", err)
		}
	})
}
