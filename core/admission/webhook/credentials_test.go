// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/admission/webhook"
)

// seenBy has a webhook note what it is shown in the Authorization header.
func seenBy(t *testing.T, s *server, elsewhere string) func() []string {
	t.Helper()
	var mu sync.Mutex
	var seen []string
	inner := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Header.Get("Authorization"))
		mu.Unlock()
		if elsewhere != "" {
			http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
			return
		}
		inner.ServeHTTP(w, r)
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
}

func credentials(t *testing.T, host, token string) webhookutil.AuthenticationInfoResolver {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nusers:\n- name: %q\n  user: {token: %q}\n", host, token)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := webhookutil.NewDefaultAuthenticationInfoResolver(file)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A webhook is shown the credentials that its place has in the kubeconfig of the
// plugin that asks; others, and who is redirected to, are shown nothing.
func TestWebhooksAreShownTheirCredentialsAndNobodyElseIs(t *testing.T) {
	thief := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(thief.Close)
	stolen := seenBy(t, &server{Server: thief}, "")
	allowed := func(w http.ResponseWriter, r *admissionv1.AdmissionReview) { allow(w, r) }
	trusted, other, redirects := serve(t, allowed), serve(t, allowed), serve(t, allowed)
	seen, otherSeen, redirected := seenBy(t, trusted, ""), seenBy(t, other, ""), seenBy(t, redirects, thief.URL)
	host := func(s *server) string {
		u, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		return u.Host
	}
	kube := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		trusted.mutating("m", nil), trusted.validating("v", nil), other.validating("w", nil))
	factory := informers.NewSharedInformerFactory(kube, 0)
	start := func(cfg webhook.Config) *webhook.Webhooks {
		cfg.Client, cfg.Informers, cfg.Authorizer, cfg.Warm = kube, factory, nobodyMay, time.Minute
		w, err := webhook.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		factory.Start(t.Context().Done())
		factory.WaitForCacheSync(t.Context().Done())
		return w
	}
	t.Cleanup(factory.Shutdown)
	w := start(webhook.Config{
		MutatingCredentials:   credentials(t, host(trusted), "changes"),
		ValidatingCredentials: credentials(t, host(trusted), "judges"),
	})
	if err := ask(t, w, admissiontest.Creating("pods", pod())); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(seen(), ","); got != "Bearer changes,Bearer judges" {
		t.Errorf("the trusted webhook saw %q", got)
	}
	if got := strings.Join(otherSeen(), ","); got != "" {
		t.Errorf("another webhook saw %q", got)
	}

	kube = fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, redirects.validating("r", nil))
	factory = informers.NewSharedInformerFactory(kube, 0)
	w = start(webhook.Config{ValidatingCredentials: credentials(t, "*", "judges")})
	if err := ask(t, w, admissiontest.Creating("pods", pod())); err == nil || !strings.Contains(err.Error(), "redirect") {
		t.Errorf("redirected: %v", err)
	}
	if len(redirected()) != 1 || redirected()[0] != "Bearer judges" || len(stolen()) != 0 {
		t.Errorf("the webhook that redirects saw %q, where it points to %q", redirected(), stolen())
	}
}
