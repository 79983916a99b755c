// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/object"
)

func TestOnlyTimesOfManagedFieldsAreNoChange(t *testing.T) {
	contract, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	res, ok := contract.Resource(corev1.Resource("configmaps"))
	if !ok {
		t.Fatal("there are no ConfigMaps")
	}
	carry := func(change func(*corev1.ConfigMap)) *object.Object {
		at := metav1.NewTime(time.Unix(1700000000, 0))
		cm := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Name: "a", ResourceVersion: "1",
				ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", Time: &at, FieldsV1: metav1.NewFieldsV1(`{"f:data":{}}`)}},
			},
			Data: map[string]string{"a": "1"},
		}
		change(cm)
		return object.FromVersioned(res.Codec("v1"), cm)
	}
	old := carry(func(*corev1.ConfigMap) {})
	later := metav1.NewTime(time.Unix(1800000000, 0))
	for name, c := range map[string]struct {
		change func(*corev1.ConfigMap)
		same   bool
	}{
		"nothing":      {func(*corev1.ConfigMap) {}, true},
		"the time":     {func(cm *corev1.ConfigMap) { cm.ManagedFields[0].Time = &later }, true},
		"the version":  {func(cm *corev1.ConfigMap) { cm.ResourceVersion = "2" }, true},
		"the data":     {func(cm *corev1.ConfigMap) { cm.Data["a"] = "2" }, false},
		"the manager":  {func(cm *corev1.ConfigMap) { cm.ManagedFields[0].Manager = "n" }, false},
		"who has what": {func(cm *corev1.ConfigMap) { cm.ManagedFields[0].FieldsV1 = metav1.NewFieldsV1(`{}`) }, false},
	} {
		next := carry(c.change)
		same, err := Unchanged(next, old)
		if err != nil || same != c.same {
			t.Errorf("%s: unchanged %v, %v; want %v", name, same, err, c.same)
		}
	}
	next := carry(func(cm *corev1.ConfigMap) { cm.ResourceVersion = "2" })
	if _, err := Unchanged(next, old); err != nil {
		t.Fatal(err)
	}
	if m, err := next.Meta(); err != nil || m.GetResourceVersion() != "2" {
		t.Error("comparing changed what was compared")
	}
}
