// SPDX-License-Identifier: Apache-2.0

// Package aggregation fills the rules of ClusterRoles that are composed of others
// by an aggregationRule: admin, edit and view are, and grow with every role that a
// custom resource's author labels for them.
package aggregation

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	rbacapply "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/kubernetes"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// fieldManager owns the rules of aggregated roles.
const fieldManager = "clusterrole-aggregation-controller"

// Controller composes roles.
type Controller struct {
	client kubernetes.Interface
	roles  rbaclisters.ClusterRoleLister
	loop   *controllers.Loop[string]
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	roles := env.Informers.Rbac().V1().ClusterRoles()
	c := &Controller{client: env.Client, roles: roles.Lister()}
	c.loop = controllers.NewLoop(env, fieldManager, workers, c.reconcile)
	// Any role may be, or may stop being, a part of any aggregated one.
	c.loop.Watch(roles.Informer(), controllers.EachObject(func(metav1.Object) {
		all, err := c.roles.List(labels.Everything())
		if err != nil {
			return
		}
		for _, role := range all {
			if role.AggregationRule != nil {
				c.loop.Add(role.Name)
			}
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, name string) error {
	role, err := c.roles.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if role.AggregationRule == nil {
		return nil
	}
	all, err := c.roles.List(labels.Everything())
	if err != nil {
		return err
	}
	rules, err := compose(role, all)
	if err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(rules, role.Rules) {
		return nil
	}
	controllers.About(ctx, "ClusterRole", role)
	apply := rbacapply.ClusterRole(name)
	apply.Rules = []rbacapply.PolicyRuleApplyConfiguration{}
	for _, r := range rules {
		rule := rbacapply.PolicyRule()
		rule.Verbs, rule.NonResourceURLs = r.Verbs, r.NonResourceURLs
		rule.APIGroups, rule.Resources, rule.ResourceNames = r.APIGroups, r.Resources, r.ResourceNames
		apply.WithRules(rule)
	}
	_, err = c.client.RbacV1().ClusterRoles().Apply(ctx, apply, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err != nil {
		return fmt.Errorf("writing the rules of cluster role %s: %w", name, err)
	}
	controllers.Did(ctx, "rules aggregated", "ClusterRole", nil)
	return nil
}

// compose collects the rules of the selected roles, each once, in a stable order.
func compose(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
	var rules []rbacv1.PolicyRule
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("selector %d of cluster role %s: %w", i, role.Name, err)
		}
		for _, part := range sorted {
			if part.Name == role.Name || !selector.Matches(labels.Set(part.Labels)) {
				continue
			}
			for _, rule := range part.Rules {
				same := func(have rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(have, rule) }
				if !slices.ContainsFunc(rules, same) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules, nil
}
