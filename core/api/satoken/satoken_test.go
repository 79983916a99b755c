// SPDX-License-Identifier: Apache-2.0

package satoken

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// cluster is what tokens are bound to.
type cluster struct {
	sa  *corev1.ServiceAccount
	pod *corev1.Pod
}

func (c *cluster) GetServiceAccount(_ context.Context, _, name string) (*corev1.ServiceAccount, error) {
	if c.sa == nil || c.sa.Name != name {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccounts"}, name)
	}
	return c.sa, nil
}

func (c *cluster) GetPod(_ context.Context, _, name string) (*corev1.Pod, error) {
	if c.pod == nil || c.pod.Name != name {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	return c.pod, nil
}

func (c *cluster) GetSecret(_ context.Context, _, name string) (*corev1.Secret, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
}

func (c *cluster) GetNode(_ context.Context, name string) (*corev1.Node, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
}

func (c *cluster) GetValidatingWebhookConfiguration(_ context.Context, name string) (*admissionv1.ValidatingWebhookConfiguration, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
}

func (c *cluster) GetMutatingWebhookConfiguration(_ context.Context, name string) (*admissionv1.MutatingWebhookConfiguration, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
}

func TestATokenLivesAsLongAsItsPod(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const issuer = "https://kubernetes.default.svc"
	signer, err := NewSigner(issuer, key)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := StaticKeys(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{
		sa:  &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "builder", Namespace: "ci", UID: "u1"}},
		pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ci", UID: "u2"}},
	}
	check := NewAuthenticator([]string{issuer}, keys, []string{"api"}, c)
	token, err := signer.Sign(t.Context(), Request{ServiceAccount: c.sa, Pod: c.pod, Audiences: []string{"api"}, Seconds: 600})
	if err != nil {
		t.Fatal(err)
	}
	ctx := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"api"})
	who, ok, err := check.AuthenticateToken(ctx, token)
	if err != nil || !ok || who.User.GetName() != "system:serviceaccount:ci:builder" || who.User.GetUID() != "u1" {
		t.Fatalf("%+v %v %v", who, ok, err)
	}
	if got := who.User.GetExtra()["authentication.kubernetes.io/pod-name"]; len(got) != 1 || got[0] != "p" {
		t.Errorf("pod in extra: %v", got)
	}
	other := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"vault"})
	if _, ok, err := check.AuthenticateToken(other, token); ok {
		t.Errorf("accepted for another audience: %v", err)
	}
	if _, ok, _ := check.AuthenticateToken(ctx, token[:len(token)-2]+"AA"); ok {
		t.Error("accepted with a wrong signature")
	}
	if _, ok, err := check.AuthenticateToken(ctx, "not.a.token"); ok || err != nil {
		t.Errorf("what is no token of ours is left to others: %v %v", ok, err)
	}
	c.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ci", UID: "another"}}
	if _, ok, err := check.AuthenticateToken(ctx, token); ok || err == nil {
		t.Error("accepted although its pod was made anew")
	}
	meta, err := NewMetadata(issuer, "", "10.0.0.1:6443", keys)
	if err != nil {
		t.Fatal(err)
	}
	if doc, _ := meta.GetConfigJSON(); !strings.Contains(string(doc), "https://10.0.0.1:6443/openid/v1/jwks") {
		t.Errorf("%s", doc)
	}
}

func TestExtend(t *testing.T) {
	if s, w := Extend(WarnOnlySeconds, true, true); s != ExtensionSeconds || w != WarnOnlySeconds {
		t.Error(s, w)
	}
	if s, w := Extend(WarnOnlySeconds, true, false); s != WarnOnlySeconds || w != 0 {
		t.Error(s, w)
	}
}
