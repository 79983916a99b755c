// SPDX-License-Identifier: Apache-2.0

// Package rootca publishes the cluster's CA certificate: the ConfigMap
// kube-root-ca.crt in every namespace, from which pods learn whom to trust as API
// server.
package rootca

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
)

const (
	name           = "kube-root-ca.crt"
	descriptionKey = "kubernetes.io/description"
	description    = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."
)

// Controller keeps the ConfigMap of every namespace.
type Controller struct {
	client     kubernetes.Interface
	rootCA     func() []byte
	namespaces corelisters.NamespaceLister
	maps       corelisters.ConfigMapLister
	loop       *controllers.Loop[string]
}

// New makes the controller; rootCA is PEM, and may be another one each time.
func New(env controllers.Env, workers int, rootCA func() []byte) (*Controller, error) {
	if rootCA == nil || len(rootCA()) == 0 {
		return nil, errors.New("root-ca-cert-publisher: no root CA certificate was given")
	}
	informer := coreinformers.NewFilteredConfigMapInformer(env.Reader, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		})
	namespaces := env.Informers.Core().V1().Namespaces()
	c := &Controller{
		client:     env.Client,
		rootCA:     rootCA,
		namespaces: namespaces.Lister(),
		maps:       corelisters.NewConfigMapLister(informer.GetIndexer()),
	}
	c.loop = controllers.NewLoop(env, "root-ca-cert-publisher", workers, c.reconcile)
	c.loop.Own(informer)
	c.loop.Watch(informer, controllers.EachObject(func(m metav1.Object) {
		if m.GetName() == name {
			c.loop.Add(m.GetNamespace())
		}
	}))
	c.loop.Watch(namespaces.Informer(), controllers.Changes(func(_, current metav1.Object) {
		if current != nil {
			c.loop.Add(current.GetName())
		}
	}))
	c.loop.Beside(controllers.OnChange(rootCA, func() {
		all, err := c.namespaces.List(labels.Everything())
		if err != nil {
			c.loop.Log().Error("the new root CA certificate could not be handed out", "error", err)
		}
		for _, ns := range all {
			c.loop.Add(ns.Name)
		}
	}))
	return c, nil
}

func (c *Controller) data() map[string]string { return map[string]string{"ca.crt": string(c.rootCA())} }

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, namespace string) error {
	ns, err := controllers.ActiveNamespace(c.namespaces, namespace)
	if err != nil || ns == nil {
		return err
	}
	controllers.About(ctx, "Namespace", ns)
	there, err := c.maps.ConfigMaps(namespace).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return c.create(ctx, namespace)
	case err != nil:
		return err
	case maps.Equal(there.Data, c.data()) && there.Annotations[descriptionKey] != "":
		return nil
	}
	changed := there.DeepCopy()
	changed.Data = c.data()
	if changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}
	changed.Annotations[descriptionKey] = description
	updated, err := c.client.CoreV1().ConfigMaps(namespace).Update(ctx, changed, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("restoring configmap %s/%s: %w", namespace, name, err)
	}
	controllers.Did(ctx, "restored", "ConfigMap", updated)
	return nil
}

func (c *Controller) create(ctx context.Context, namespace string) error {
	created, err := c.client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Annotations: map[string]string{descriptionKey: description}},
		Data:       c.data(),
	}, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err):
		return nil // seen by the informer soon, or of no use any more
	case err != nil:
		return fmt.Errorf("creating configmap %s/%s: %w", namespace, name, err)
	}
	controllers.Did(ctx, "created", "ConfigMap", created)
	return nil
}
