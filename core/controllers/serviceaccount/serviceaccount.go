// SPDX-License-Identifier: Apache-2.0

// Package serviceaccount gives every namespace its "default" service account, and
// fills the token secrets that somebody asked for by creating a Secret of type
// kubernetes.io/service-account-token.
package serviceaccount

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// defaultName is the service account that pods run under unless they name one.
const defaultName = "default"

// Controller keeps the default service account of every namespace.
type Controller struct {
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	accounts   corelisters.ServiceAccountLister
	loop       *controllers.Loop[string]
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	core := env.Informers.Core().V1()
	c := &Controller{client: env.Client, namespaces: core.Namespaces().Lister(), accounts: core.ServiceAccounts().Lister()}
	c.loop = controllers.NewLoop(env, "service-account-controller", workers, c.reconcile)
	c.loop.Watch(core.Namespaces().Informer(), controllers.Changes(func(_, current metav1.Object) {
		if current != nil {
			c.loop.Add(current.GetName())
		}
	}))
	c.loop.Watch(core.ServiceAccounts().Informer(), controllers.Changes(func(old, current metav1.Object) {
		if current == nil && old.GetName() == defaultName {
			c.loop.Add(old.GetNamespace())
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, namespace string) error {
	ns, err := controllers.ActiveNamespace(c.namespaces, namespace)
	if err != nil || ns == nil {
		return err
	}
	if _, err := c.accounts.ServiceAccounts(namespace).Get(defaultName); err == nil {
		return nil
	} else if !apierrors.IsNotFound(err) {
		return err
	}
	controllers.About(ctx, "Namespace", ns)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: defaultName, Namespace: namespace}}
	created, err := c.client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("creating service account %s/%s: %w", namespace, defaultName, err)
	}
	controllers.Did(ctx, "created", "ServiceAccount", created)
	return nil
}
