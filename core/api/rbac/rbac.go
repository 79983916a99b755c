// SPDX-License-Identifier: Apache-2.0

// Package rbac is role-based access control with upstream's evaluation of
// rules, upstream's bootstrap policy, and upstream's guard against escalation.
//
// It speaks v1 types only. Roles and bindings come from listers, so a decision
// costs no request; the sources are read-only.
package rbac

import (
	"context"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	synced   <-chan struct{}
}

// patience is how long a question waits for roles and bindings to be read.
const patience = 10 * time.Second

// NewAuthorizer reads roles and bindings from listers. synced is closed when their
// informers are: a question that comes earlier, while the server starts, waits for
// it, since a refusal would be wrong and no client tries again after one. nil =
// they are synced.
func NewAuthorizer(synced <-chan struct{}, roles listers.RoleLister, bindings listers.RoleBindingLister,
	clusterRoles listers.ClusterRoleLister, clusterBindings listers.ClusterRoleBindingLister,
) *Authorizer {
	r, rb := &upstream.RoleGetter{Lister: roles}, &upstream.RoleBindingLister{Lister: bindings}
	cr, crb := &upstream.ClusterRoleGetter{Lister: clusterRoles}, &upstream.ClusterRoleBindingLister{Lister: clusterBindings}
	return &Authorizer{
		RBACAuthorizer: upstream.New(r, rb, cr, crb),
		resolver:       validation.NewDefaultRuleResolver(r, rb, cr, crb),
		synced:         synced,
	}
}

// Authorize implements authz.Authorizer.
func (a *Authorizer) Authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	if err := a.wait(ctx); err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	return a.RBACAuthorizer.Authorize(ctx, attributes)
}

func (a *Authorizer) wait(ctx context.Context) error {
	if a.synced == nil {
		return nil
	}
	select {
	case <-a.synced:
		return nil
	default:
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-a.synced:
		return nil
	case <-timer.C:
		return apierrors.NewTimeoutError("the server is starting and has not read the roles yet; try again", 1)
	case <-ctx.Done():
		return context.Cause(ctx)
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
	if err := a.wait(ctx); err != nil {
		return nil, err
	}
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
