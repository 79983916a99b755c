// SPDX-License-Identifier: Apache-2.0

// Package roles says who may do what in every cluster: upstream's policy with ours on top, and the identity of each component,
// with the least that it needs. It writes nothing; package bootstrap does.
package roles

import (
	"context"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/api/rbac"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/pki"
)

// Policy is upstream's, and ours on top: see own.go.
func Policy() rbac.Policy {
	p := rbac.BootstrapPolicy()
	p.ClusterRoles = append(p.ClusterRoles, ownClusterRoles()...)
	p.ClusterRoleBindings = append(p.ClusterRoleBindings, ownClusterBindings()...)
	for namespace, roles := range ownRoles() {
		p.Roles[namespace] = append(p.Roles[namespace], roles...)
	}
	for namespace, bindings := range ownRoleBindings() {
		p.RoleBindings[namespace] = append(p.RoleBindings[namespace], bindings...)
	}
	return p
}

// Component is a part of the cluster that is a client of the API.
type Component struct {
	// Name is a word for it: "scheduler", "controller/deployment-controller".
	Name string
	// User is the identity that it works under. None is in the break-glass group.
	User user.Info
	// ByNode: its rights on objects come from the Node authorizer, beside those of
	// roles.
	ByNode bool
}

// Components lists all of them; node is the kubelet that is meant.
func Components(node string) []Component {
	list := []Component{
		{Name: "scheduler", User: identity(pki.Scheduler())},
		{Name: "controller-manager", User: identity(pki.ControllerManager())},
		{Name: "proxy", User: identity(pki.Proxy())},
		{Name: "dns", User: CoreDNS()},
		{Name: "kubelet", User: identity(pki.Node(node)), ByNode: true},
		{Name: "apiserver-kubelet-client", User: identity(pki.KubeletClient())},
	}
	for _, name := range controllerAccounts(Policy()) {
		list = append(list, Component{Name: "controller/" + name, User: serviceaccount.UserInfo(metav1.NamespaceSystem, name, "")})
	}
	return list
}

func identity(id pki.Identity) user.Info {
	return &user.DefaultInfo{Name: id.User, Groups: append(slices.Clone(id.Groups), user.AllAuthenticated)}
}

// controllerAccounts are the service accounts that roles called
// system:controller:... are bound to.
func controllerAccounts(p rbac.Policy) []string {
	var names []string
	for _, b := range p.ClusterRoleBindings {
		if !strings.HasPrefix(b.RoleRef.Name, "system:controller:") {
			continue
		}
		for _, s := range b.Subjects {
			if s.Kind == rbacv1.ServiceAccountKind && s.Namespace == metav1.NamespaceSystem {
				names = append(names, s.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Grants are the rules that roles give to a user, cluster-wide and by namespace.
type Grants struct {
	Cluster    []rbacv1.PolicyRule
	Namespaces map[string][]rbacv1.PolicyRule
}

// GrantsOf collects what a policy gives to u.
func GrantsOf(p rbac.Policy, u user.Info) Grants {
	g := Grants{Namespaces: map[string][]rbacv1.PolicyRule{}}
	cluster := map[string][]rbacv1.PolicyRule{}
	for _, r := range p.ClusterRoles {
		cluster[r.Name] = r.Rules
	}
	for _, b := range p.ClusterRoleBindings {
		if applies(b.Subjects, u, "") {
			g.Cluster = append(g.Cluster, cluster[b.RoleRef.Name]...)
		}
	}
	for namespace, bindings := range p.RoleBindings {
		for _, b := range bindings {
			if !applies(b.Subjects, u, namespace) {
				continue
			}
			rules := cluster[b.RoleRef.Name]
			if b.RoleRef.Kind == "Role" {
				rules = nil
				for _, r := range p.Roles[namespace] {
					if r.Name == b.RoleRef.Name {
						rules = r.Rules
					}
				}
			}
			g.Namespaces[namespace] = append(g.Namespaces[namespace], rules...)
		}
	}
	return g
}

func applies(subjects []rbacv1.Subject, u user.Info, namespace string) bool {
	return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
		switch s.Kind {
		case rbacv1.UserKind:
			return s.Name == u.GetName()
		case rbacv1.GroupKind:
			return slices.Contains(u.GetGroups(), s.Name)
		case rbacv1.ServiceAccountKind:
			ns := s.Namespace
			if ns == "" {
				ns = namespace
			}
			return serviceaccount.MatchesUsername(ns, s.Name, u.GetName())
		}
		return false
	})
}

// Less is what remains of grants when the rights on one resource, or on one path,
// were forgotten.
type Less struct {
	// Missing says what is forgotten: "list,watch services".
	Missing string
	Grants
}

// EachLess forgets one thing after the other in g's cluster-wide rules. A component
// that still works without one of them has a right too many; one that says nothing
// sensible without it fails badly.
func (g Grants) EachLess() []Less {
	var all []Less
	for i, rule := range g.Cluster {
		for j := range max(len(rule.Resources), len(rule.NonResourceURLs)) {
			less := Less{Grants: Grants{Cluster: slices.Clone(g.Cluster), Namespaces: g.Namespaces}}
			cut := rule.DeepCopy()
			if len(rule.Resources) > 0 {
				less.Missing = strings.Join(rule.Verbs, ",") + " " + rule.Resources[j]
				cut.Resources = slices.Delete(cut.Resources, j, j+1)
			} else {
				less.Missing = strings.Join(rule.Verbs, ",") + " " + rule.NonResourceURLs[j]
				cut.NonResourceURLs = slices.Delete(cut.NonResourceURLs, j, j+1)
			}
			less.Cluster[i] = *cut
			all = append(all, less)
		}
	}
	return all
}

// Authorizer allows exactly what g grants, to whoever asks, and everything to the
// break-glass group, which stands above all authorizers.
func (g Grants) Authorizer() authz.Authorizer { return granted{g} }

type granted struct{ g Grants }

func (granted) Name() string { return "granted" }

func (a granted) Authorize(_ context.Context, q authz.Attributes) (authz.Decision, string, error) {
	if u := q.GetUser(); u != nil && slices.Contains(u.GetGroups(), authz.BreakGlassGroup) {
		return authz.Allow, "", nil
	}
	if rbac.RulesAllow(q, a.g.Cluster...) || rbac.RulesAllow(q, a.g.Namespaces[q.GetNamespace()]...) {
		return authz.Allow, "", nil
	}
	return authz.NoOpinion, "", nil
}
