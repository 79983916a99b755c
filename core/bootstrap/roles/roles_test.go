// SPDX-License-Identifier: Apache-2.0

package roles

import (
	"slices"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
)

func TestNoComponentBreaksGlass(t *testing.T) {
	p := Policy()
	for _, c := range Components("n1") {
		if slices.Contains(c.User.GetGroups(), user.SystemPrivilegedGroup) {
			t.Errorf("%s is in %s", c.Name, user.SystemPrivilegedGroup)
		}
		g := GrantsOf(p, c.User)
		if len(g.Cluster) == 0 && !c.ByNode {
			t.Errorf("%s has no rights", c.Name)
		}
		for _, r := range g.Cluster {
			all := slices.Contains(r.Verbs, "*") && slices.Contains(r.Resources, "*") && slices.Contains(r.APIGroups, "*")
			// The garbage collector and the namespace controller work on every kind, but
			// with the verbs that they need.
			if all {
				t.Errorf("%s may do everything", c.Name)
			}
		}
	}
}

// Who may edit a namespace leads no Service to others' pods (CVE-2021-25740): the addresses
// behind Services are written by controllers.
func TestEditorsWriteNoEndpoints(t *testing.T) {
	seen := 0
	for _, role := range Policy().ClusterRoles {
		if role.Labels["rbac.authorization.k8s.io/aggregate-to-edit"] != "true" &&
			role.Labels["rbac.authorization.k8s.io/aggregate-to-admin"] != "true" {
			continue
		}
		seen++
		for _, rule := range role.Rules {
			writes := slices.ContainsFunc(rule.Verbs, func(verb string) bool { return !slices.Contains([]string{"get", "list", "watch"}, verb) })
			if writes && slices.ContainsFunc(rule.Resources,
				func(r string) bool { return slices.Contains([]string{"endpoints", "endpointslices", "*"}, r) }) {
				t.Errorf("the role %s has %+v", role.Name, rule)
			}
		}
	}
	if seen < 2 {
		t.Errorf("only %d roles of editors are there", seen)
	}
}
