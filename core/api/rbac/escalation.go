// SPDX-License-Identifier: Apache-2.0

package rbac

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/apis/core/helper"
	rbacregistry "k8s.io/kubernetes/pkg/registry/rbac"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
)

// Upstream compares permission by permission, each with every word of the rules that the writer has. A rule of some
// kilobytes is millions of permissions, so that their number and that of the comparisons are bounded beforehand.
const (
	maxPermissions = 100_000
	maxComparisons = 50_000_000
)

// ConfirmNoEscalation refuses to let u hand out rules that u does not have in
// the namespace ("" = cluster-wide). The error lists what is missing. Rules that are
// more permissions than can be compared are refused too, before they are compared.
func (a *Authorizer) ConfirmNoEscalation(ctx context.Context, u user.Info, namespace string, rules []rbacv1.PolicyRule) error {
	ctx = request.WithNamespace(request.WithUser(ctx, u), namespace)
	n := permissions(rules)
	if n > maxPermissions {
		return fmt.Errorf("its rules are %d permissions (verbs times API groups times resources times names), and at most %d can be compared "+
			"with those of who writes them: divide them between several roles", n, maxPermissions)
	}
	held, err := a.resolver.RulesFor(ctx, u, namespace)
	if c := n * words(held); err == nil && c > maxComparisons {
		return fmt.Errorf("its rules are %d permissions, and their writer has rules of %d words: at most %d comparisons are made, so "+
			"divide them between several roles", n, words(held), maxComparisons)
	}
	return validation.ConfirmNoEscalation(ctx, a.resolver, rules)
}

// permissions is how many single permissions the rules are; past the bound the number is one above it at least.
func permissions(rules []rbacv1.PolicyRule) (n int) {
	for i := range rules {
		r := &rules[i]
		// Each list has fewer entries than an object has bytes, so that three of them are no overflow.
		n += len(r.Verbs) * len(r.NonResourceURLs)
		n += min(len(r.Verbs)*len(r.APIGroups)*len(r.Resources), math.MaxInt32) * max(1, len(r.ResourceNames))
		if n > maxPermissions {
			return n
		}
	}
	return n
}

func words(rules []rbacv1.PolicyRule) (n int) {
	for i := range rules {
		r := &rules[i]
		n += 1 + len(r.Verbs) + len(r.APIGroups) + len(r.Resources) + len(r.ResourceNames) + len(r.NonResourceURLs)
	}
	return n
}

// Guard refuses writes of roles and bindings by which their writer would gain,
// or hand out, more than the writer has. Upstream does this around its storage;
// the registry calls it between admission and the store.
type Guard struct {
	RBAC *Authorizer
	// Chain is the server's whole authorizer chain: it is asked for the verbs
	// "escalate" and "bind".
	Chain authorizer.UnconditionalAuthorizer
}

// Check judges a create (old is nil) or an update of one of the four v1 kinds;
// any other object passes. The error is an API status (403) in upstream's words.
// namespace and name are the request's.
func (g Guard) Check(ctx context.Context, u user.Info, namespace, name string, obj, old runtime.Object) error {
	if slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return nil
	}
	if old != nil && rbacregistry.IsOnlyMutatingGCFields(obj, old, helper.Semantic) {
		return nil
	}
	switch o := obj.(type) {
	case *rbacv1.Role:
		return g.role(ctx, u, "roles", namespace, name, o.Name, o.Rules)
	case *rbacv1.ClusterRole:
		before, _ := old.(*rbacv1.ClusterRole)
		return g.clusterRole(ctx, u, name, o, before)
	case *rbacv1.RoleBinding:
		return g.binding(ctx, u, "rolebindings", namespace, o.Name, o.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		return g.binding(ctx, u, "clusterrolebindings", "", o.Name, o.RoleRef)
	}
	return nil
}

func (g Guard) role(ctx context.Context, u user.Info, resource, namespace, name, objectName string, rules []rbacv1.PolicyRule) error {
	if g.may(ctx, u, "escalate", resource, namespace, name) {
		return nil
	}
	if err := g.RBAC.ConfirmNoEscalation(ctx, u, namespace, rules); err != nil {
		return forbidden(resource, objectName, err)
	}
	return nil
}

func (g Guard) clusterRole(ctx context.Context, u user.Info, name string, o, old *rbacv1.ClusterRole) error {
	const resource = "clusterroles"
	if g.may(ctx, u, "escalate", resource, "", name) {
		return nil
	}
	if err := g.RBAC.ConfirmNoEscalation(ctx, u, "", o.Rules); err != nil {
		return forbidden(resource, o.Name, err)
	}
	// An aggregation rule can gather anything, and one that is taken away
	// tightens nothing: it takes everything to write a role that has, or had, one.
	if !aggregates(o) && !aggregates(old) {
		return nil
	}
	if err := g.RBAC.ConfirmNoEscalation(ctx, u, "", fullAuthority()); err != nil {
		return forbidden(resource, o.Name, errors.New("must have cluster-admin privileges to use the aggregationRule"))
	}
	return nil
}

func (g Guard) binding(ctx context.Context, u user.Info, resource, namespace, name string, ref rbacv1.RoleRef) error {
	if g.may(ctx, u, "bind", roleResource(ref), namespace, ref.Name) {
		return nil
	}
	rules, err := g.RBAC.resolver.GetRoleReferenceRules(ctx, ref, namespace)
	if err != nil {
		return err
	}
	if err := g.RBAC.ConfirmNoEscalation(ctx, u, namespace, rules); err != nil {
		return forbidden(resource, name, err)
	}
	return nil
}

// may asks the chain; an error of one authorizer counts as "no".
func (g Guard) may(ctx context.Context, u user.Info, verb, resource, namespace, name string) bool {
	if g.Chain == nil || resource == "" {
		return false
	}
	d, _, _ := g.Chain.Authorize(ctx, authorizer.AttributesRecord{
		User: u, Verb: verb, APIGroup: rbacv1.GroupName, APIVersion: "*", Resource: resource,
		Namespace: namespace, Name: name, ResourceRequest: true,
	})
	return d == authorizer.DecisionAllow
}

func roleResource(ref rbacv1.RoleRef) string {
	switch ref.Kind {
	case "ClusterRole":
		return "clusterroles"
	case "Role":
		return "roles"
	}
	return ""
}

func aggregates(r *rbacv1.ClusterRole) bool {
	return r != nil && r.AggregationRule != nil && len(r.AggregationRule.ClusterRoleSelectors) > 0
}

func fullAuthority() []rbacv1.PolicyRule {
	all := []string{"*"}
	return []rbacv1.PolicyRule{{Verbs: all, APIGroups: all, Resources: all}, {Verbs: all, NonResourceURLs: all}}
}

func forbidden(resource, name string, err error) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, name, err)
}
