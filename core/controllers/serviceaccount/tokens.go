// SPDX-License-Identifier: Apache-2.0

package serviceaccount

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// Minter signs the token of a token secret: no expiry, valid while the secret and
// the account exist.
type Minter interface {
	LegacyToken(ctx context.Context, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error)
}

// Tokens fills and removes token secrets.
type Tokens struct {
	client   kubernetes.Interface
	minter   Minter
	rootCA   func() []byte
	secrets  cache.Indexer
	accounts corelisters.ServiceAccountLister
	loop     *controllers.Loop[controllers.Key]
}

const byAccount = "account"

// NewTokens makes the controller of token secrets. rootCA (PEM, may be nil) is
// put into them as ca.crt.
func NewTokens(env controllers.Env, workers int, minter Minter, rootCA func() []byte) (*Tokens, error) {
	if minter == nil {
		return nil, errors.New("tokens-controller: nobody to mint tokens was given")
	}
	// Only secrets of this type: the others' contents are none of our business,
	// and there may be many.
	secrets := coreinformers.NewFilteredSecretInformer(env.Reader, metav1.NamespaceAll, 0,
		cache.Indexers{byAccount: func(obj any) ([]string, error) {
			s, ok := obj.(*corev1.Secret)
			if !ok {
				return nil, nil
			}
			return []string{accountOf(s).String()}, nil
		}},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String()
		})
	accounts := env.Informers.Core().V1().ServiceAccounts()
	if rootCA == nil {
		rootCA = func() []byte { return nil }
	}
	c := &Tokens{client: env.Client, minter: minter, rootCA: rootCA, secrets: secrets.GetIndexer(), accounts: accounts.Lister()}
	c.loop = controllers.NewLoop(env, "tokens-controller", workers, c.reconcile)
	c.loop.Own(secrets)
	c.loop.Watch(secrets, controllers.KeyHandler(c.loop))
	c.loop.Beside(controllers.OnChange(rootCA, func() {
		for _, key := range c.secrets.ListKeys() {
			if name, err := cache.ParseObjectName(key); err == nil {
				c.loop.Add(name)
			}
		}
	}))
	c.loop.Watch(accounts.Informer(), controllers.EachObject(func(account metav1.Object) {
		found, err := c.secrets.ByIndex(byAccount, cache.MetaObjectToName(account).String())
		if err != nil {
			return
		}
		for _, obj := range found {
			if s, ok := obj.(*corev1.Secret); ok {
				c.loop.Add(cache.MetaObjectToName(s))
			}
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Tokens) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func accountOf(s *corev1.Secret) controllers.Key {
	return controllers.Key{Namespace: s.Namespace, Name: s.Annotations[corev1.ServiceAccountNameKey]}
}

func (c *Tokens) reconcile(ctx context.Context, key controllers.Key) error {
	obj, exists, err := c.secrets.GetByKey(key.String())
	if err != nil || !exists {
		return err
	}
	secret, ok := obj.(*corev1.Secret)
	if !ok || secret.Type != corev1.SecretTypeServiceAccountToken || accountOf(secret).Name == "" {
		return nil
	}
	controllers.About(ctx, "Secret", secret)
	account, err := c.account(ctx, secret)
	switch {
	case err != nil:
		return fmt.Errorf("reading service account %s: %w", accountOf(secret), err)
	case account == nil:
		return c.remove(ctx, secret)
	}
	return c.fill(ctx, account, secret)
}

// account is the secret's service account; nil if it is gone. A miss in the cache
// is checked with the server before a secret is deleted for it.
func (c *Tokens) account(ctx context.Context, secret *corev1.Secret) (*corev1.ServiceAccount, error) {
	key, uid := accountOf(secret), types.UID(secret.Annotations[corev1.ServiceAccountUIDKey])
	same := func(a *corev1.ServiceAccount) bool { return uid == "" || a.UID == uid }
	if cached, err := c.accounts.ServiceAccounts(key.Namespace).Get(key.Name); err == nil && same(cached) {
		return cached, nil
	}
	live, err := c.client.CoreV1().ServiceAccounts(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || (err == nil && !same(live)) {
		return nil, nil
	}
	return live, err
}

func (c *Tokens) remove(ctx context.Context, secret *corev1.Secret) error {
	err := c.client.CoreV1().Secrets(secret.Namespace).Delete(ctx, secret.Name, controllers.DeleteExactly(secret))
	if err == nil {
		controllers.Did(ctx, "deleted, because its service account is gone", "Secret", nil)
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (c *Tokens) fill(ctx context.Context, account *corev1.ServiceAccount, cached *corev1.Secret) error {
	if c.filled(cached) {
		return nil
	}
	// A token once handed out stays; so what the secret holds is read from the
	// server before one is signed.
	live, err := c.client.CoreV1().Secrets(cached.Namespace).Get(ctx, cached.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if live.UID != cached.UID || c.filled(live) {
		return nil
	}
	if live.Annotations == nil {
		live.Annotations = map[string]string{}
	}
	if live.Data == nil {
		live.Data = map[string][]byte{}
	}
	if len(live.Data[corev1.ServiceAccountTokenKey]) == 0 {
		token, err := c.minter.LegacyToken(ctx, account, live)
		if err != nil {
			return fmt.Errorf("minting a token for %s/%s: %w", account.Namespace, account.Name, err)
		}
		live.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	if ca := c.rootCA(); len(ca) > 0 {
		live.Data[corev1.ServiceAccountRootCAKey] = ca
	}
	live.Data[corev1.ServiceAccountNamespaceKey] = []byte(live.Namespace)
	live.Annotations[corev1.ServiceAccountNameKey] = account.Name
	live.Annotations[corev1.ServiceAccountUIDKey] = string(account.UID)
	if _, err := c.client.CoreV1().Secrets(live.Namespace).Update(ctx, live, metav1.UpdateOptions{}); err != nil {
		return err
	}
	controllers.Did(ctx, "filled with a token", "Secret", nil)
	return nil
}

func (c *Tokens) filled(s *corev1.Secret) bool {
	return len(s.Data[corev1.ServiceAccountTokenKey]) > 0 &&
		len(s.Data[corev1.ServiceAccountNamespaceKey]) > 0 &&
		(len(c.rootCA()) == 0 || bytes.Equal(s.Data[corev1.ServiceAccountRootCAKey], c.rootCA()))
}
