// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/api/satoken"
	"github.com/wasmplane/wasmplane/core/pki"
)

func account() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: "sa-1"}}
}

// A pod gets a token, calls the API with it, and is refused once it is gone.
func TestATokenLivesAsLongAsItsPod(t *testing.T) {
	ctx := t.Context()
	authority, err := pki.Open(pki.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(account(),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n-1"}},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p-1"},
			Spec:       corev1.PodSpec{ServiceAccountName: "sa", NodeName: "n1"},
		},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other", UID: "p-2"}, Spec: corev1.PodSpec{ServiceAccountName: "else"}},
	)
	signer, err := satoken.NewSigner(audience, authority.ServiceAccountKey())
	if err != nil {
		t.Fatal(err)
	}
	keys, err := satoken.StaticKeys(authority.ServiceAccountKey())
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := NewIssuer(IssuerConfig{Signer: signer, Objects: NewLiveObjects(client), Audiences: []string{audience}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	authn, err := New(Config{
		Audiences: []string{audience}, Now: func() time.Time { return now },
		ServiceAccounts: satoken.NewAuthenticator([]string{audience}, keys, []string{audience}, NewLiveObjects(client)),
	})
	if err != nil {
		t.Fatal(err)
	}
	bound := func(name, uid string) *authenticationv1.BoundObjectReference {
		return &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: name, UID: types.UID(uid)}
	}
	short := int64(60)
	for _, c := range []struct {
		name string
		spec authenticationv1.TokenRequestSpec
		want string
	}{
		{"another account's pod", authenticationv1.TokenRequestSpec{BoundObjectRef: bound("other", "")}, "different serviceaccount name"},
		{"a pod made anew", authenticationv1.TokenRequestSpec{BoundObjectRef: bound("p", "p-0")}, "does not match the UID in record"},
		{"no such pod", authenticationv1.TokenRequestSpec{BoundObjectRef: bound("gone", "")}, "not found"},
		{"a kind that nothing is bound to", authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x"}}, "cannot bind token to object of type /v1, Kind=ConfigMap"},
		{"too short", authenticationv1.TokenRequestSpec{ExpirationSeconds: &short}, "less than 10 minutes"},
	} {
		if err := issuer.Issue(ctx, account(), &authenticationv1.TokenRequest{Spec: c.spec}); err == nil || !strings.Contains(err.Error(),
			c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound("p", "p-1")}}
	if err := issuer.Issue(ctx, account(), request); err != nil {
		t.Fatal(err)
	}
	ask := func() bool {
		r := httptest.NewRequest("GET", "/api", nil)
		bearer(request.Status.Token)(r)
		resp, ok, _ := authn.AuthenticateRequest(r)
		if ok && (resp.User.GetName() != "system:serviceaccount:ns:sa" ||
			resp.User.GetExtra()["authentication.kubernetes.io/node-name"][0] != "n1") {
			t.Errorf("the server sees %+v", resp.User)
		}
		return ok
	}
	if !ask() {
		t.Fatal("a good token was refused")
	}
	if err := client.CoreV1().Pods("ns").Delete(ctx, "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Minute)
	if ask() {
		t.Error("the token of a deleted pod was believed")
	}
}

func TestOpenIDDocuments(t *testing.T) {
	authority, err := pki.Open(pki.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := satoken.StaticKeys(authority.ServiceAccountKey())
	if err != nil {
		t.Fatal(err)
	}
	m, err := satoken.NewMetadata(audience, "", "127.0.0.1:6443", keys)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		satoken.ConfigPath: `"jwks_uri":"https://127.0.0.1:6443/openid/v1/jwks"`,
		satoken.KeysPath:   `"alg":"ES256"`,
	} {
		w := httptest.NewRecorder()
		OpenID(m)[path].ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %s", path, w.Body)
		}
	}
}
