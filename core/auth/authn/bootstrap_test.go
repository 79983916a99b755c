// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/kubernetes/fake"
)

func TestBootstrapTokens(t *testing.T) {
	const token = "abcdef.0123456789abcdef"
	for name, tc := range map[string]struct {
		change func(*corev1.Secret)
		token  string
		ok     bool
		groups []string
	}{
		"good":            {ok: true, groups: []string{"system:bootstrappers"}},
		"with groups":     {change: func(s *corev1.Secret) { s.Data["auth-extra-groups"] = []byte("system:bootstrappers:worker") }, ok: true, groups: []string{"system:bootstrappers", "system:bootstrappers:worker"}},
		"not yet expired": {change: func(s *corev1.Secret) { s.Data["expiration"] = []byte(time.Now().Add(time.Hour).Format(time.RFC3339)) }, ok: true, groups: []string{"system:bootstrappers"}},
		"kept as a digest": {change: func(s *corev1.Secret) {
			delete(s.Data, "token-secret")
			s.Data["token-secret-sha256"] = []byte("9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f")
		}, ok: true, groups: []string{"system:bootstrappers"}},
		"of another digest":  {change: func(s *corev1.Secret) { s.Data["token-secret-sha256"] = []byte("00") }},
		"without a secret":   {change: func(s *corev1.Secret) { delete(s.Data, "token-secret") }},
		"expired":            {change: func(s *corev1.Secret) { s.Data["expiration"] = []byte(time.Now().Add(-time.Hour).Format(time.RFC3339)) }},
		"with a broken end":  {change: func(s *corev1.Secret) { s.Data["expiration"] = []byte("tomorrow") }},
		"a group too strong": {change: func(s *corev1.Secret) { s.Data["auth-extra-groups"] = []byte("system:masters") }},
		"for signing only":   {change: func(s *corev1.Secret) { delete(s.Data, "usage-bootstrap-authentication") }},
		"another type":       {change: func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }},
		"being deleted":      {change: func(s *corev1.Secret) { s.DeletionTimestamp = &metav1.Time{Time: time.Now()} }},
		"of another name":    {change: func(s *corev1.Secret) { s.Data["token-id"] = []byte("fedcba") }},
		"a wrong secret":     {token: "abcdef.fedcba9876543210"},
		"an unknown one":     {token: "fedcba.0123456789abcdef"},
		"not such a token":   {token: "abcdef.0123456789ABCDEF"},
		"a path":             {token: "../x/..0123456789abcdef"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"}, Type: corev1.SecretTypeBootstrapToken,
				Data: map[string][]byte{
					"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"),
					"usage-bootstrap-authentication": []byte("true"),
				},
			}
			if tc.change != nil {
				tc.change(s)
			}
			if tc.token == "" {
				tc.token = token
			}
			a, err := New(Config{
				Tokens:    []authenticator.Token{NewBootstrapTokens(fake.NewClientset(s), []string{audience}, nil)},
				Audiences: []string{audience},
			})
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequest("GET", "/api", nil)
			bearer(tc.token)(r)
			resp, ok, err := a.AuthenticateRequest(r)
			if ok != tc.ok {
				t.Fatalf("let in: %t, %v", ok, err)
			}
			if ok && (resp.User.GetName() != "system:bootstrap:abcdef" || !slices.Equal(resp.User.GetGroups(),
				append(tc.groups, "system:authenticated"))) {
				t.Errorf("is %s in %q", resp.User.GetName(), resp.User.GetGroups())
			}
		})
	}
}
