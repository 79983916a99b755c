// SPDX-License-Identifier: Apache-2.0

package aggregation

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCompose(t *testing.T) {
	role := func(name string, labels map[string]string, resources ...string) *rbacv1.ClusterRole {
		r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		for _, res := range resources {
			r.Rules = append(r.Rules, rbacv1.PolicyRule{Verbs: []string{"get"}, Resources: []string{res}})
		}
		return r
	}
	toView := map[string]string{"to-view": "true"}
	view := role("view", toView, "stale") // it selects itself: that must not keep what it had
	view.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
		{MatchLabels: toView},
		{MatchLabels: map[string]string{"extra": "yes"}},
	}}
	rules, err := compose(view, []*rbacv1.ClusterRole{
		role("z", toView, "pods", "services"), view, role("a", toView, "widgets", "pods"), role("unrelated", nil, "secrets"),
		role("both", map[string]string{"extra": "yes", "to-view": "true"}, "gadgets"),
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rules {
		got = append(got, r.Resources...)
	}
	want := []string{"widgets", "pods", "gadgets", "services"}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}
