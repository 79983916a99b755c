// SPDX-License-Identifier: Apache-2.0

// Package bootstraptoken looks after the tokens by which machines join: it removes
// those that have expired, and signs the ConfigMap kube-public/cluster-info with
// each that may sign, so that a joining machine can tell it from a forged one.
package bootstraptoken

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"
	"k8s.io/cluster-bootstrap/util/secrets"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// tokens watches nothing but bootstrap tokens: all Secrets of a cluster in memory
// would be too much.
func tokens(env controllers.Env) (cache.SharedIndexInformer, corelisters.SecretNamespaceLister) {
	informer := coreinformers.NewFilteredSecretInformer(env.Reader, metav1.NamespaceSystem, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeBootstrapToken)).String()
		})
	return informer, corelisters.NewSecretLister(informer.GetIndexer()).Secrets(metav1.NamespaceSystem)
}

// Cleaner removes tokens that have expired.
type Cleaner struct {
	client kubernetes.Interface
	tokens corelisters.SecretNamespaceLister
	loop   *controllers.Loop[string]
	now    func() time.Time
}

// NewCleaner makes the controller.
func NewCleaner(env controllers.Env, workers int) (*Cleaner, error) {
	informer, lister := tokens(env)
	c := &Cleaner{client: env.Client, tokens: lister, now: time.Now}
	c.loop = controllers.NewLoop(env, "token-cleaner-controller", workers, c.reconcile)
	c.loop.Own(informer)
	c.loop.Watch(informer, controllers.Changes(func(_, current metav1.Object) {
		if current != nil {
			c.loop.Add(current.GetName())
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Cleaner) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Cleaner) reconcile(ctx context.Context, name string) error {
	s, err := c.tokens.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	left, expired := secrets.GetExpiration(s, c.now())
	switch {
	case !expired && left > 0:
		c.loop.AddAfter(name, left)
		return nil
	case !expired:
		return nil // it has no end
	}
	controllers.About(ctx, "Secret", s)
	err = c.client.CoreV1().Secrets(s.Namespace).Delete(ctx, name, controllers.DeleteExactly(s))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting an expired bootstrap token: %w", err)
	}
	controllers.Did(ctx, "removed, because it has expired", "Secret", nil)
	return nil
}

// Signer keeps the signatures of cluster-info.
type Signer struct {
	client kubernetes.Interface
	tokens corelisters.SecretNamespaceLister
	infos  corelisters.ConfigMapNamespaceLister
	loop   *controllers.Loop[string]
	now    func() time.Time
}

// NewSigner makes the controller.
func NewSigner(env controllers.Env) (*Signer, error) {
	informer, lister := tokens(env)
	info := coreinformers.NewFilteredConfigMapInformer(env.Reader, metav1.NamespacePublic, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, api.ConfigMapClusterInfo).String()
		})
	s := &Signer{
		client: env.Client, tokens: lister,
		infos: corelisters.NewConfigMapLister(info.GetIndexer()).ConfigMaps(metav1.NamespacePublic), now: time.Now,
	}
	s.loop = controllers.NewLoop(env, "bootstrap-signer-controller", 1, s.reconcile)
	s.loop.Own(informer)
	s.loop.Own(info)
	again := controllers.EachObject(func(metav1.Object) { s.loop.Add(api.ConfigMapClusterInfo) })
	s.loop.Watch(informer, again)
	s.loop.Watch(info, again)
	return s, nil
}

// Run works until ctx ends.
func (s *Signer) Run(ctx context.Context) error { return s.loop.Run(ctx) }

func (s *Signer) reconcile(ctx context.Context, name string) error {
	there, err := s.infos.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	content, ok := there.Data[api.KubeConfigKey]
	if !ok {
		return nil
	}
	controllers.About(ctx, "ConfigMap", there)
	wanted, err := s.signed(there.Data, content)
	if err != nil {
		return err
	}
	if maps.Equal(wanted, there.Data) {
		return nil
	}
	changed := there.DeepCopy()
	changed.Data = wanted
	if _, err := s.client.CoreV1().ConfigMaps(there.Namespace).Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("signing configmap %s/%s: %w", there.Namespace, there.Name, err)
	}
	controllers.Did(ctx, "signed", "ConfigMap", nil)
	return nil
}

// signed is data with the signatures of the tokens that there are, and no others.
func (s *Signer) signed(data map[string]string, content string) (map[string]string, error) {
	out := maps.Clone(data)
	maps.DeleteFunc(out, func(key, _ string) bool { return strings.HasPrefix(key, api.JWSSignatureKeyPrefix) })
	all, err := s.tokens.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, token := range all {
		id, secret, ok := s.signing(token)
		if !ok {
			continue
		}
		signature, err := jws.ComputeDetachedSignature(content, id, secret)
		if err != nil {
			return nil, fmt.Errorf("signing with bootstrap token %s: %w", id, err)
		}
		out[api.JWSSignatureKeyPrefix+id] = signature
	}
	return out, nil
}

func (s *Signer) signing(token *corev1.Secret) (id, secret string, ok bool) {
	named, ok := secrets.ParseName(token.Name)
	id, secret = secrets.GetData(token, api.BootstrapTokenIDKey), secrets.GetData(token, api.BootstrapTokenSecretKey)
	return id, secret, ok && token.Type == corev1.SecretTypeBootstrapToken && id == named && secret != "" && token.DeletionTimestamp == nil &&
		!secrets.HasExpired(token, s.now()) && secrets.GetData(token, api.BootstrapTokenUsageSigningKey) == "true"
}
