// Package rbac is role-based access control with upstream's evaluation of
// rules, upstream's bootstrap policy, and upstream's guard against escalation.
//
// It speaks v1 types only. Roles and bindings come from listers, so a decision
// costs no request; the sources are read-only.
package rbac

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	listers "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
	upstream "k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// Authorizer answers by roles and bindings. It never denies: what no rule
// allows is left to the next in the chain.
type Authorizer struct {
	*upstream.RBACAuthorizer
	resolver *validation.DefaultRuleResolver
}

// NewAuthorizer reads roles and bindings from listers; their informers have to
// be synced for the answers to be complete.
func NewAuthorizer(roles listers.RoleLister, bindings listers.RoleBindingLister,
	clusterRoles listers.ClusterRoleLister, clusterBindings listers.ClusterRoleBindingLister,
) *Authorizer {
	r, rb := &upstream.RoleGetter{Lister: roles}, &upstream.RoleBindingLister{Lister: bindings}
	cr, crb := &upstream.ClusterRoleGetter{Lister: clusterRoles}, &upstream.ClusterRoleBindingLister{Lister: clusterBindings}
	return &Authorizer{
		RBACAuthorizer: upstream.New(r, rb, cr, crb),
		resolver:       validation.NewDefaultRuleResolver(r, rb, cr, crb),
	}
}

var (
	_ authorizer.Authorizer   = (*Authorizer)(nil)
	_ authorizer.RuleResolver = (*Authorizer)(nil)
)

// Name implements authz.Authorizer.
func (a *Authorizer) Name() string { return "RBAC" }

// PolicyRulesFor lists the rules that apply to a user in a namespace ("" =
// cluster-wide ones only). With an error the list may be incomplete.
func (a *Authorizer) PolicyRulesFor(ctx context.Context, u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	return a.resolver.RulesFor(ctx, u, namespace)
}

// Policy is what a new cluster begins with.
type Policy struct {
	ClusterRoles        []rbacv1.ClusterRole
	ClusterRoleBindings []rbacv1.ClusterRoleBinding
	Roles               map[string][]rbacv1.Role        // by namespace
	RoleBindings        map[string][]rbacv1.RoleBinding // by namespace
	// RenamedClusterRoles maps names of roles that earlier versions had to the
	// aggregated roles that take their rules over.
	RenamedClusterRoles map[string]string
	// SplitClusterRoleBindings are to be made, with the subjects of the binding
	// that the key names, where that exists.
	SplitClusterRoleBindings map[string]rbacv1.ClusterRoleBinding
}

// BootstrapPolicy is upstream's: the roles and bindings of system components
// and of controllers. k8s.io/component-helpers/auth/rbac/reconciliation brings
// a running cluster up to it without taking away what an operator added.
func BootstrapPolicy() Policy {
	return Policy{
		ClusterRoles:             append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...),
		ClusterRoleBindings:      append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...),
		Roles:                    bootstrappolicy.NamespaceRoles(),
		RoleBindings:             bootstrappolicy.NamespaceRoleBindings(),
		RenamedClusterRoles:      bootstrappolicy.ClusterRolesToAggregate(),
		SplitClusterRoleBindings: bootstrappolicy.ClusterRoleBindingsToSplit(),
	}
}

// RulesAllow says whether any of rules allows what a asks.
func RulesAllow(a authorizer.Attributes, rules ...rbacv1.PolicyRule) bool {
	return upstream.RulesAllow(a, rules...)
}
