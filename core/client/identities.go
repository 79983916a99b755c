// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Identities gives out configurations of service accounts, so that each
// controller works with its own rights and none with the sum of them.
type Identities interface {
	ForServiceAccount(namespace, name string) (*rest.Config, error)
}

// InMemoryIdentities gives out in-memory configurations.
type InMemoryIdentities struct{ Handler http.Handler }

// ForServiceAccount implements Identities.
func (i InMemoryIdentities) ForServiceAccount(namespace, name string) (*rest.Config, error) {
	return InMemory(i.Handler, serviceaccount.UserInfo(namespace, name, ""), name), nil
}

// TokenIdentities asks the API for a token of the service account, which is
// created where it is missing, and renews it in time. Base is the identity that
// may do both.
type TokenIdentities struct {
	Base *rest.Config
	Kube kubernetes.Interface
}

// ForServiceAccount implements Identities.
func (i TokenIdentities) ForServiceAccount(namespace, name string) (*rest.Config, error) {
	cfg := rest.AnonymousClientConfig(i.Base)
	source := &tokenSource{kube: i.Kube, namespace: namespace, name: name, now: time.Now}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return bearer{source: source, next: next}
	})
	return unlimited(cfg, name), nil
}

type bearer struct {
	source *tokenSource
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := b.source.token(req.Context())
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+token)
	return b.next.RoundTrip(req)
}

const tokenLifetime = time.Hour

type tokenSource struct {
	kube            kubernetes.Interface
	namespace, name string
	now             func() time.Time

	mu    sync.Mutex
	value string
	renew time.Time
}

func (s *tokenSource) token(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.value != "" && s.now().Before(s.renew) {
		return s.value, nil
	}
	token, err := s.request(ctx)
	if apierrors.IsNotFound(err) {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.name}}
		if _, err := s.kube.CoreV1().ServiceAccounts(s.namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			return "", fmt.Errorf("create service account %s/%s: %w", s.namespace, s.name, err)
		}
		token, err = s.request(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("request a token of service account %s/%s: %w", s.namespace, s.name, err)
	}
	life := token.Status.ExpirationTimestamp.Sub(s.now())
	s.value, s.renew = token.Status.Token, s.now().Add(life*8/10)
	return s.value, nil
}

func (s *tokenSource) request(ctx context.Context) (*authnv1.TokenRequest, error) {
	seconds := int64(tokenLifetime / time.Second)
	return s.kube.CoreV1().ServiceAccounts(s.namespace).CreateToken(ctx, s.name,
		&authnv1.TokenRequest{Spec: authnv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
}
