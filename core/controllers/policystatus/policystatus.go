// SPDX-License-Identifier: Apache-2.0

// Package policystatus holds the expressions of ValidatingAdmissionPolicies
// against the schemas of what they judge, and writes what it finds into their
// status. A warning there changes nothing of what a policy does: it tells its
// author of a field that does not exist before a request does.
package policystatus

import (
	"context"
	"errors"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	applyv1 "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/admissionregistration/v1"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/run"
)

// manager owns the status, as upstream's controller does.
const manager = "validatingadmissionpolicy-status-controller"

// Controller checks policies.
type Controller struct {
	client   kubernetes.Interface
	reader   discovery.DiscoveryInterface
	policies listers.ValidatingAdmissionPolicyLister
	loop     *controllers.Loop[controllers.Key]
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	policies := env.Informers.Admissionregistration().V1().ValidatingAdmissionPolicies()
	c := &Controller{client: env.Client, reader: env.Reader.Discovery(), policies: policies.Lister()}
	c.loop = controllers.NewLoop(env, manager, workers, c.reconcile)
	c.loop.Watch(policies.Informer(), controllers.EachObject(func(o metav1.Object) { c.loop.Add(cache.MetaObjectToName(o)) }))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	policy, err := c.policies.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if policy.Generation <= policy.Status.ObservedGeneration {
		return nil
	}
	warnings, err := c.check(ctx, policy)
	if err != nil {
		return err
	}
	status := applyv1.ValidatingAdmissionPolicyStatus().WithObservedGeneration(policy.Generation).
		WithTypeChecking(applyv1.TypeChecking().WithExpressionWarnings(warnings...))
	controllers.About(ctx, "ValidatingAdmissionPolicy", policy)
	_, err = c.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().ApplyStatus(ctx,
		applyv1.ValidatingAdmissionPolicy(policy.Name).WithStatus(status), metav1.ApplyOptions{FieldManager: manager, Force: true})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing what its expressions were found to be: %w", err)
	}
	return nil
}

// checkWithin bounds one check: schemas may come from servers that are slow.
const checkWithin = 30 * time.Second

// check asks the server for its kinds and schemas anew: policies are rarely
// written, and kinds come and go.
func (c *Controller) check(ctx context.Context,
	policy *admissionregistrationv1.ValidatingAdmissionPolicy,
) ([]*applyv1.ExpressionWarningApplyConfiguration, error) {
	groups, err := restmapper.GetAPIGroupResources(c.reader)
	if err != nil && len(groups) == 0 {
		return nil, fmt.Errorf("discovering what the server serves: %w", err)
	}
	checker := &validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: c.reader},
		RestMapper:     restmapper.NewDiscoveryRESTMapper(groups),
	}
	found, err := within(ctx, checkWithin, func() []admissionregistrationv1.ExpressionWarning { return checker.Check(policy) })
	if err != nil {
		return nil, err
	}
	out := make([]*applyv1.ExpressionWarningApplyConfiguration, 0, len(found))
	for _, w := range found {
		out = append(out, applyv1.ExpressionWarning().WithFieldRef(w.FieldRef).WithWarning(w.Warning))
	}
	return out, nil
}

// within gives up on f, which takes no context; it ends by itself when the
// discovery client's own time is over.
func within[T any](ctx context.Context, d time.Duration, f func() T) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var t T
	done := run.Go("policystatus: check of expressions", func() error { t = f(); return nil })
	select {
	case <-done:
		return t, nil
	case <-ctx.Done():
		var none T
		return none, errors.New("checking the policy's expressions took too long")
	}
}
