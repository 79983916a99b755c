// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"

	"github.com/wasmplane/wasmplane/core/api/rbac"
)

// writers bounds how many objects are written at a time.
const writers = 8

// clusterRoles lists once and writes only what differs.
func (b *Bootstrap) clusterRoles(ctx context.Context, p rbac.Policy) error {
	api := b.cfg.Client.RbacV1().ClusterRoles()
	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list cluster roles: %w", err)
	}
	has := map[string]*rbacv1.ClusterRole{}
	for i := range list.Items {
		has[list.Items[i].Name] = &list.Items[i]
	}
	if err := b.renameRoles(ctx, p, has); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(writers)
	for i := range p.ClusterRoles {
		wanted := &p.ClusterRoles[i]
		g.Go(func() error {
			first := true
			get := func(_, name string) (reconciliation.RuleOwner, error) {
				if r, ok := has[name]; ok && first {
					first = false
					return reconciliation.ClusterRoleRuleOwner{ClusterRole: r.DeepCopy()}, nil
				} else if first {
					first = false
					return nil, apierrors.NewNotFound(rbacv1.Resource("clusterroles"), name)
				}
				r, err := api.Get(ctx, name, metav1.GetOptions{})
				return reconciliation.ClusterRoleRuleOwner{ClusterRole: r}, err
			}
			return b.reconcileRole("cluster role "+wanted.Name, reconciliation.ClusterRoleRuleOwner{ClusterRole: wanted}, owners{
				get: get,
				create: func(o reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
					r, err := api.Create(ctx, o.(reconciliation.ClusterRoleRuleOwner).ClusterRole, metav1.CreateOptions{})
					return reconciliation.ClusterRoleRuleOwner{ClusterRole: r}, err
				},
				update: func(o reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
					r, err := api.Update(ctx, o.(reconciliation.ClusterRoleRuleOwner).ClusterRole, metav1.UpdateOptions{})
					return reconciliation.ClusterRoleRuleOwner{ClusterRole: r}, err
				},
			})
		})
	}
	return g.Wait()
}

// renameRoles hands an operator's changes to a role that became an aggregated one
// over to the role that now has its rules.
func (b *Bootstrap) renameRoles(ctx context.Context, p rbac.Policy, has map[string]*rbacv1.ClusterRole) error {
	for old, name := range p.RenamedClusterRoles {
		existing, ok := has[old]
		if _, done := has[name]; done || !ok || existing.AggregationRule != nil {
			continue
		}
		moved := existing.DeepCopy()
		moved.ObjectMeta = metav1.ObjectMeta{Name: name, Labels: existing.Labels, Annotations: existing.Annotations}
		created, err := b.cfg.Client.RbacV1().ClusterRoles().Create(ctx, moved, metav1.CreateOptions{})
		if made(err) != nil {
			return fmt.Errorf("move cluster role %s to %s: %w", old, name, err)
		}
		if err == nil {
			has[name] = created
		}
	}
	return nil
}

func (b *Bootstrap) clusterBindings(ctx context.Context, p rbac.Policy) error {
	api := b.cfg.Client.RbacV1().ClusterRoleBindings()
	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list cluster role bindings: %w", err)
	}
	has := map[string]*rbacv1.ClusterRoleBinding{}
	for i := range list.Items {
		has[list.Items[i].Name] = &list.Items[i]
	}
	if err := b.splitBindings(ctx, p, has); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(writers)
	for i := range p.ClusterRoleBindings {
		wanted := &p.ClusterRoleBindings[i]
		g.Go(func() error {
			first := true
			return b.reconcileBinding("cluster role binding "+wanted.Name, reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: wanted},
				bindings{
					get: func(_, name string) (reconciliation.RoleBinding, error) {
						if !first {
							r, err := api.Get(ctx, name, metav1.GetOptions{})
							return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: r}, err
						}
						first = false
						if r, ok := has[name]; ok {
							return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: r.DeepCopy()}, nil
						}
						return nil, apierrors.NewNotFound(rbacv1.Resource("clusterrolebindings"), name)
					},
					remove: func(_, name string, uid types.UID) error {
						return api.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
					},
					create: func(o reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
						r, err := api.Create(ctx, o.(reconciliation.ClusterRoleBindingAdapter).ClusterRoleBinding, metav1.CreateOptions{})
						return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: r}, err
					},
					update: func(o reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
						r, err := api.Update(ctx, o.(reconciliation.ClusterRoleBindingAdapter).ClusterRoleBinding, metav1.UpdateOptions{})
						return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: r}, err
					},
				})
		})
	}
	return g.Wait()
}

// splitBindings keeps an operator's subjects where one binding became two.
func (b *Bootstrap) splitBindings(ctx context.Context, p rbac.Policy, has map[string]*rbacv1.ClusterRoleBinding) error {
	for from, template := range p.SplitClusterRoleBindings {
		source, ok := has[from]
		if _, done := has[template.Name]; done || !ok {
			continue
		}
		split := template.DeepCopy()
		split.Subjects, split.Labels, split.Annotations = source.Subjects, source.Labels, source.Annotations
		created, err := b.cfg.Client.RbacV1().ClusterRoleBindings().Create(ctx, split, metav1.CreateOptions{})
		if made(err) != nil {
			return fmt.Errorf("split cluster role binding %s from %s: %w", split.Name, from, err)
		}
		if err == nil {
			has[split.Name] = created
		}
	}
	return nil
}

// roles of single namespaces are few: each is read on its own.
func (b *Bootstrap) roles(ctx context.Context, p rbac.Policy) error {
	var g errgroup.Group
	g.SetLimit(writers)
	for namespace, list := range p.Roles {
		api := b.cfg.Client.RbacV1().Roles(namespace)
		for i := range list {
			wanted := list[i].DeepCopy()
			wanted.Namespace = namespace
			g.Go(func() error {
				return b.reconcileRole("role "+namespace+"/"+wanted.Name, reconciliation.RoleRuleOwner{Role: wanted}, owners{
					get: func(_, name string) (reconciliation.RuleOwner, error) {
						r, err := api.Get(ctx, name, metav1.GetOptions{})
						return reconciliation.RoleRuleOwner{Role: r}, err
					},
					create: func(o reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
						r, err := api.Create(ctx, o.(reconciliation.RoleRuleOwner).Role, metav1.CreateOptions{})
						return reconciliation.RoleRuleOwner{Role: r}, err
					},
					update: func(o reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
						r, err := api.Update(ctx, o.(reconciliation.RoleRuleOwner).Role, metav1.UpdateOptions{})
						return reconciliation.RoleRuleOwner{Role: r}, err
					},
				})
			})
		}
	}
	for namespace, list := range p.RoleBindings {
		api := b.cfg.Client.RbacV1().RoleBindings(namespace)
		for i := range list {
			wanted := list[i].DeepCopy()
			wanted.Namespace = namespace
			g.Go(func() error {
				return b.reconcileBinding("role binding "+namespace+"/"+wanted.Name, reconciliation.RoleBindingAdapter{RoleBinding: wanted}, bindings{
					get: func(_, name string) (reconciliation.RoleBinding, error) {
						r, err := api.Get(ctx, name, metav1.GetOptions{})
						return reconciliation.RoleBindingAdapter{RoleBinding: r}, err
					},
					remove: func(_, name string, uid types.UID) error {
						return api.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
					},
					create: func(o reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
						r, err := api.Create(ctx, o.(reconciliation.RoleBindingAdapter).RoleBinding, metav1.CreateOptions{})
						return reconciliation.RoleBindingAdapter{RoleBinding: r}, err
					},
					update: func(o reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
						r, err := api.Update(ctx, o.(reconciliation.RoleBindingAdapter).RoleBinding, metav1.UpdateOptions{})
						return reconciliation.RoleBindingAdapter{RoleBinding: r}, err
					},
				})
			})
		}
	}
	return g.Wait()
}

func (b *Bootstrap) reconcileRole(what string, wanted reconciliation.RuleOwner, client owners) error {
	o := reconciliation.ReconcileRoleOptions{Role: wanted, Confirm: true, Client: client}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		result, err := o.Run()
		if err == nil && result.Protected && result.Operation != reconciliation.ReconcileNone {
			b.cfg.Log.Warn("a protected role lacks rules", "role", what, "missing", result.MissingRules)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (b *Bootstrap) reconcileBinding(what string, wanted reconciliation.RoleBinding, client bindings) error {
	o := reconciliation.ReconcileRoleBindingOptions{RoleBinding: wanted, Confirm: true, Client: client}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		result, err := o.Run()
		if err == nil && result.Protected && result.Operation != reconciliation.ReconcileNone {
			b.cfg.Log.Warn("a protected binding lacks subjects", "binding", what, "missing", result.MissingSubjects)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// owners is a reconciliation.RuleOwnerModifier of functions.
type owners struct {
	get            func(namespace, name string) (reconciliation.RuleOwner, error)
	create, update func(reconciliation.RuleOwner) (reconciliation.RuleOwner, error)
}

func (o owners) Get(namespace, name string) (reconciliation.RuleOwner, error) {
	return o.get(namespace, name)
}

func (o owners) Create(r reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	return o.create(r)
}

func (o owners) Update(r reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	return o.update(r)
}

// bindings is a reconciliation.RoleBindingModifier of functions.
type bindings struct {
	get            func(namespace, name string) (reconciliation.RoleBinding, error)
	remove         func(namespace, name string, uid types.UID) error
	create, update func(reconciliation.RoleBinding) (reconciliation.RoleBinding, error)
}

func (b bindings) Get(namespace, name string) (reconciliation.RoleBinding, error) {
	return b.get(namespace, name)
}

func (b bindings) Delete(namespace, name string, uid types.UID) error {
	return b.remove(namespace, name, uid)
}

func (b bindings) Create(r reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	return b.create(r)
}

func (b bindings) Update(r reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	return b.update(r)
}
