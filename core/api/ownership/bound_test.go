// SPDX-License-Identifier: Apache-2.0

package ownership

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// asked counts how often upstream's manager is asked.
type asked struct{ times int }

func (a *asked) UpdateNoErrors(_, next runtime.Object, _ string) runtime.Object {
	a.times++
	return next
}

func (a *asked) Apply(live, _ runtime.Object, _ string, _ bool) (runtime.Object, error) {
	a.times++
	return live, nil
}

// TestManagedFieldsAreBoundedByTheSquare: what upstream's manager takes grows with the
// square of the members of one list or map, wherever it is, and a body of a MiB has room for 60,000.
func TestManagedFieldsAreBoundedByTheSquare(t *testing.T) {
	env := func(n int) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
		p.Spec.Containers[0].Env = make([]corev1.EnvVar, n)
		return p
	}
	keys := func(n int) *corev1.ConfigMap {
		c := &corev1.ConfigMap{Data: map[string]string{}}
		for i := range n {
			c.Data[fmt.Sprint(i)] = ""
		}
		return c
	}
	custom := func(n int) *unstructured.Unstructured {
		list := make([]any, n)
		for i := range list {
			list[i] = map[string]any{"name": "a"}
		}
		return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"a": []any{map[string]any{"b": list}}}}}
	}
	spread := func(n int) *corev1.Pod { // over a hundred lists, whose squares are small
		p := &corev1.Pod{}
		for range 100 {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Env: make([]corev1.EnvVar, n/100-1)})
		}
		return p
	}
	bytes := &corev1.Secret{Data: map[string][]byte{"a": make([]byte, 10*MaxSiblings)}}
	managers := func(n int) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ManagedFields: make([]metav1.ManagedFieldsEntry, n)}}
	}
	fields := func(n int) *corev1.Pod {
		p := managers(1)
		p.ManagedFields[0].FieldsV1 = &metav1.FieldsV1{}
		p.ManagedFields[0].FieldsV1.SetRawBytes(make([]byte, n))
		return p
	}
	mine := []metav1.ManagedFieldsEntry{{Manager: "before"}}
	for name, c := range map[string]struct {
		o    runtime.Object
		want int
	}{
		"a list in a list":        {env(MaxSiblings - 1), 1},
		"one that is too long":    {env(MaxSiblings + 1), 0},
		"lists":                   {spread(MaxEntries - 100), 1},
		"lists of too much":       {spread(MaxEntries + 100), 0},
		"keys":                    {keys(MaxSiblings - 1), 1},
		"too many keys":           {keys(MaxSiblings + 1), 0},
		"a custom resource":       {custom(MaxSiblings - 1), 1},
		"a custom resource, long": {custom(MaxSiblings + 1), 0},
		"bytes":                   {bytes, 1},
		"managers":                {managers(MaxManagers), 1},
		"fields":                  {fields(MaxFieldBytes), 1},
		"too many fields":         {fields(MaxFieldBytes + 1), 0},
		"too many managers":       {managers(MaxManagers + 1), 0},
	} {
		up := &asked{}
		b := Bound(up)
		if _, err := b.Apply(&corev1.Pod{}, c.o, "m", false); (err == nil) != (c.want == 1) || err != nil && (!apierrors.IsRequestEntityTooLargeError(err) || !strings.Contains(err.Error(), "20000")) {
			t.Errorf("%s: applied: %v", name, err)
		}
		// What is there counts as what comes.
		if _, err := b.Apply(c.o, &corev1.Pod{}, "m", false); (err == nil) != (c.want == 1) {
			t.Errorf("%s: applied to: %v", name, err)
		}
		live := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ManagedFields: mine}}
		next := b.UpdateNoErrors(live, c.o, "m").(metav1.Object)
		if up.times != 3*c.want {
			t.Errorf("%s: upstream's manager was asked %d times", name, up.times)
		}
		if c.want == 0 && (len(next.GetManagedFields()) != 1 || next.GetManagedFields()[0].Manager != "before") {
			t.Errorf("%s: managed fields %v", name, next.GetManagedFields())
		}
	}
}
