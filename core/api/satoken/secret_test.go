// SPDX-License-Identifier: Apache-2.0

package satoken

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/kubernetes/fake"
)

// served reads Secrets from a client, and the rest as cluster does.
type served struct {
	*cluster
	client *fake.Clientset
}

func (s served) GetSecret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return s.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
}

// TestTheUseOfATokenIsKnown by a label of its Secret, by which an unused one is found, and one that is marked is refused.
func TestTheUseOfATokenIsKnown(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := NewSigner("https://kubernetes.default.svc", key)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := StaticKeys(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "builder", Namespace: "ci", UID: "u1"}}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: "ci", UID: "s1"}, Type: corev1.SecretTypeServiceAccountToken}
	token, err := SecretTokens{signer}.LegacyToken(t.Context(), account, secret)
	if err != nil {
		t.Fatal(err)
	}
	secret.Data = map[string][]byte{corev1.ServiceAccountTokenKey: []byte(token)}
	client := fake.NewClientset(secret)
	api := client.CoreV1().Secrets("ci")
	check, err := NewLegacyAuthenticator(keys, []string{"api"}, served{&cluster{sa: account}, client}, client.CoreV1())
	if err != nil {
		t.Fatal(err)
	}
	ctx := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"api"})
	labels := func() map[string]string {
		s, err := api.Get(t.Context(), "t", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s.Labels
	}
	day := func() string { return time.Now().UTC().Format(time.DateOnly) }
	before := day()
	who, ok, err := check.AuthenticateToken(ctx, token)
	if err != nil || !ok || who.User.GetName() != "system:serviceaccount:ci:builder" {
		t.Fatalf("%+v %v %v", who, ok, err)
	}
	if used := labels()["kubernetes.io/legacy-token-last-used"]; used != before && used != day() {
		t.Errorf("used on %q, %s", used, before)
	}
	writes := len(client.Actions())
	if _, ok, err := check.AuthenticateToken(ctx, token); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if before == day() && len(client.Actions()) != writes+1 { // the authenticator reads
		t.Errorf("a second use on one day was written: %v", client.Actions()[writes:])
	}
	marked := secret.DeepCopy()
	marked.Labels = map[string]string{"kubernetes.io/legacy-token-invalid-since": "2026-01-01"}
	if _, err := api.Update(t.Context(), marked, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := check.AuthenticateToken(ctx, token); ok || err == nil {
		t.Error("a token that is marked as invalid was accepted")
	}
	if used := labels()["kubernetes.io/legacy-token-last-used"]; used == "" {
		t.Error("the use of an invalid token was not written")
	}
	marked.Labels, marked.Data = nil, map[string][]byte{corev1.ServiceAccountTokenKey: []byte("another")}
	if _, err := api.Update(t.Context(), marked, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := check.AuthenticateToken(ctx, token); ok {
		t.Error("a token was accepted whose Secret has another")
	}
	if err := api.Delete(t.Context(), "t", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := check.AuthenticateToken(ctx, token); ok {
		t.Error("a token was accepted whose Secret is gone")
	}
}
