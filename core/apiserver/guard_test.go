// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/apiserver"
	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/registry"
)

// rule is an authorizer of one function.
type rule func(ctx context.Context, a authz.Attributes) (authz.Decision, string, error)

func (rule) Name() string { return "rule" }

func (r rule) Authorize(ctx context.Context, a authz.Attributes) (authz.Decision, string, error) {
	return r(ctx, a)
}

func TestImpersonation(t *testing.T) {
	s := apiservertest.Start(t,
		apiservertest.Options{Authorizer: rule(func(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
			if !strings.HasPrefix(a.GetVerb(), "impersonate") {
				return authorizer.DecisionAllow, "", nil
			}
			if a.GetVerb() == "impersonate" && a.GetUser().GetName() == "admin" && a.GetName() != "system:masters" {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "", nil
		})})
	whoami := func(asker string, as rest.ImpersonationConfig) (authenticationv1.UserInfo, error) {
		cfg := s.Config(asker)
		cfg.Impersonate = as
		r, err := kubernetes.NewForConfigOrDie(cfg).AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
			&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return authenticationv1.UserInfo{}, err
		}
		return r.Status.UserInfo, nil
	}
	who, err := whoami("admin", rest.ImpersonationConfig{
		UserName: "bob", Groups: []string{"devs"},
		Extra: map[string][]string{"scope/a": {"x"}},
	})
	if err != nil || who.Username != "bob" || strings.Join(who.Groups, ",") != "devs,system:authenticated" || who.Extra["scope/a"][0] != "x" {
		t.Errorf("as bob: %v, %+v", err, who)
	}
	who, err = whoami("admin", rest.ImpersonationConfig{UserName: "system:serviceaccount:ns:sa"})
	if err != nil || strings.Join(who.Groups, ",") != "system:serviceaccounts,system:serviceaccounts:ns,system:authenticated" {
		t.Errorf("as a service account: %v, %+v", err, who)
	}
	for _, test := range []struct {
		asker, says string
		as          rest.ImpersonationConfig
	}{
		{"mallory", `User "mallory" cannot impersonate-on:user-info:create resource "selfsubjectreviews" in API group "authentication.k8s.io" at the cluster scope`, rest.ImpersonationConfig{UserName: "admin"}},
		{"admin", `User "admin" cannot impersonate resource "groups" in API group "" at the cluster scope`, rest.ImpersonationConfig{UserName: "bob", Groups: []string{"system:masters"}}},
		{"admin", `User "admin" cannot impersonate resource "groups" in API group "" at the cluster scope`, rest.ImpersonationConfig{UserName: "bob", Groups: []string{"devs", "system:masters"}}},
	} {
		if _, err := whoami(test.asker, test.as); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s as %+v: got %v", test.asker, test.as, err)
		}
	}
}

// More requests than the bound are told to come back; administrators get in.
func TestTooManyRequests(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s := apiservertest.Start(t, apiservertest.Options{
		Server: func(c *apiserver.Config) {
			c.MaxReads = 1
			c.Mounts = append(c.Mounts, holding(entered, leave))
		},
	})
	get := func(who string) *http.Response {
		path := "/api/v1/namespaces"
		if who == "slow" {
			path = "/hold"
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+who)
		response, err := httpClient(t, s).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		return response
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		get("slow")
	}()
	<-entered
	if r := get("fast"); r.StatusCode != http.StatusTooManyRequests || r.Header.Get("Retry-After") != "1" {
		t.Errorf("answered %d, Retry-After %q", r.StatusCode, r.Header.Get("Retry-After"))
	}
	if r := get("admin|system:masters"); r.StatusCode != http.StatusOK {
		t.Errorf("an administrator was answered %d", r.StatusCode)
	}
	close(leave)
	<-done
	if r := get("fast"); r.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %d", r.StatusCode)
	}
}

// stumbling is an admission chain that panics, waits or warns as names tell it.
type stumbling struct{}

func (stumbling) Mutate(ctx context.Context, r *admission.Request) error {
	switch r.Name {
	case "panic":
		panic("a plugin stumbled")
	case "wait":
		<-ctx.Done()
		return ctx.Err()
	case "warn":
		r.Warn("mind the gap")
	}
	return nil
}

func (stumbling) Validate(context.Context, *admission.Request) error { return nil }

// What goes wrong in one request stays in it.
func TestTroubleInOneRequest(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{
		Registry: func(c *registry.Config) { c.Admission = stumbling{} },
		Server:   func(c *apiserver.Config) { c.RequestTimeout = 300 * time.Millisecond },
	})
	var warned []string
	cfg := s.Config("tester")
	cfg.WarningHandler = warner(func(text string) { warned = append(warned, text) })
	c := kubernetes.NewForConfigOrDie(cfg)
	create := func(name string) error {
		_, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
		return err
	}
	if err := create("panic"); !apierrors.IsInternalError(err) {
		t.Errorf("a panic: got %v", err)
	}
	if err := create("wait"); !apierrors.IsTimeout(err) {
		t.Errorf("a plugin that never answers: got %v", err)
	}
	if err := create("warn"); err != nil || len(warned) != 1 || warned[0] != "mind the gap" {
		t.Errorf("got %v, warnings %q", err, warned)
	}
}

type warner func(string)

func (w warner) HandleWarningHeader(_ int, _, text string) { w(text) }

// Nobody has said that the user may not: it is the server that failed, and a
// client that tries again is right.
func TestAFailingAuthorizerIsTheServersFault(t *testing.T) {
	var s *apiservertest.Server
	away := errors.New("the policy server is away")
	s = apiservertest.Start(t,
		apiservertest.Options{Authorizer: rule(func(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
			switch {
			case a.GetName() == "allowed": // in part, and allowed all the same
				return authz.Allow, "", away
			case a.GetName() == "denied":
				return authz.Deny, "closed", away
			case a.GetName() == "unknown":
				return authz.NoOpinion, "", away
			case a.GetVerb() == "create":
				return authz.NoOpinion, "", away
			}
			return authz.Allow, "", nil
		})})
	c := kubernetes.NewForConfigOrDie(s.Config("jane"))
	get := func(name string) error {
		_, err := c.CoreV1().ConfigMaps("ns").Get(t.Context(), name, metav1.GetOptions{})
		return err
	}
	if err := get("allowed"); !apierrors.IsNotFound(err) {
		t.Errorf("allowed in spite of an error: %v", err)
	}
	for _, name := range []string{"denied", "unknown"} {
		if err := get(name); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), away.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := c.CoreV1().ConfigMaps("ns").Patch(t.Context(), "new", types.ApplyPatchType,
		[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new"}}`), metav1.PatchOptions{FieldManager: "t"})
	if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), away.Error()) {
		t.Errorf("an apply that turns out to create: %v", err)
	}
}
