// SPDX-License-Identifier: Apache-2.0

package accessgraph

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// Rights are the roles of a cluster and who has them.
type Rights struct {
	ClusterRoles        []rbacv1.ClusterRole
	ClusterRoleBindings []rbacv1.ClusterRoleBinding
	Roles               []rbacv1.Role
	RoleBindings        []rbacv1.RoleBinding
}

// Of are the rules of a user, in any namespace. Rules that the user has only as a member of a
// group are not among them: what everybody may do says nothing of one.
func (r *Rights) Of(user string) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for _, b := range r.ClusterRoleBindings {
		if names(b.Subjects, user, "") {
			rules = append(rules, r.ClusterRole(b.RoleRef.Name)...)
		}
	}
	for _, b := range r.RoleBindings {
		switch {
		case !names(b.Subjects, user, b.Namespace):
		case b.RoleRef.Kind == "ClusterRole":
			rules = append(rules, r.ClusterRole(b.RoleRef.Name)...)
		default:
			is := slices.IndexFunc(r.Roles, func(o rbacv1.Role) bool { return o.Namespace == b.Namespace && o.Name == b.RoleRef.Name })
			if is >= 0 {
				rules = append(rules, r.Roles[is].Rules...)
			}
		}
	}
	return rules
}

// ClusterRole has the rules of a role; none if there is no such role.
func (r *Rights) ClusterRole(name string) []rbacv1.PolicyRule {
	is := slices.IndexFunc(r.ClusterRoles, func(o rbacv1.ClusterRole) bool { return o.Name == name })
	if is < 0 {
		return nil
	}
	return r.ClusterRoles[is].Rules
}

func names(subjects []rbacv1.Subject, user, namespace string) bool {
	return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
		if s.Kind != rbacv1.ServiceAccountKind {
			return s.Kind == rbacv1.UserKind && s.Name == user
		}
		in := s.Namespace
		if in == "" {
			in = namespace
		}
		return user == ServiceAccount(in+"/"+s.Name)
	})
}

// ServiceAccount is the user that NAMESPACE/NAME is.
func ServiceAccount(account string) string {
	return "system:serviceaccount:" + strings.Replace(account, "/", ":", 1)
}
