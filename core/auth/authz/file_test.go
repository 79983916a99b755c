// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/dial/dialtest"
)

type fixed struct {
	name string
	d    Decision
}

func (f fixed) Name() string { return f.name }

func (f fixed) Authorize(context.Context, Attributes) (Decision, string, error) {
	return f.d, "by " + f.name, nil
}

func order(t *testing.T, doc string, before, after []Authorizer) []string {
	t.Helper()
	entries, err := parseFile([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n"+doc), dial.Operator(nil))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, a := range Arrange(entries, Native{fixed{"Node", NoOpinion}, fixed{"RBAC", NoOpinion}}, before, after) {
		names = append(names, a.Name())
	}
	return names
}

func TestPluginsStandWhereTheFileSays(t *testing.T) {
	before, after := []Authorizer{fixed{"a", Deny}, fixed{"b", Deny}}, []Authorizer{fixed{"c", Allow}}
	const node, rbac = "- {type: Node, name: node}\n", "- {type: RBAC, name: rbac}\n"
	for doc, want := range map[string]string{
		node + rbac: "a b Node RBAC c",
		rbac + node: "a b RBAC Node c",
		node + "- {type: Wasm, name: c}\n" + rbac:                                   "a b Node c RBAC",
		node + "- {type: Wasm, name: wasm}\n" + rbac:                                "Node a b c RBAC",
		"- {type: Wasm, name: c}\n" + node + rbac + "- {type: Wasm, name: wasm}\n":  "c Node RBAC a b",
		node + rbac + "- {type: Wasm, name: not-loaded}\n- {type: Wasm, name: a}\n": "b Node RBAC a c",
		"- {type: Wasm, name: wasm}\n- {type: Wasm, name: b}\n" + rbac:              "a c b RBAC",
	} {
		if got := strings.Join(order(t, doc, before, after), " "); got != want {
			t.Errorf("%s: %s, want %s", doc, got, want)
		}
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	for doc, want := range map[string]string{
		"[]":                          "at least one authorization mode",
		"[{type: ABAC, name: abac}]":  "Unsupported value",
		"[{type: RBAC, name: roles}]": "is named rbac",
		"[{type: RBAC, name: rbac}, {type: RBAC, name: rbac}]": "Duplicate",
		"[{type: Webhook, name: w}]":                           "webhook: Required",
		"[{type: RBAC, name: rbac, x: 1}]":                     "unknown field",
	} {
		file := filepath.Join(t.TempDir(), "f.yaml")
		if err := os.WriteFile(file, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: "+doc+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadFile(file, dial.Operator(nil)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(),
			file) {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

func TestAWebhookIsAskedWhereItMatchesAndItsAnswerIsKept(t *testing.T) {
	var asked atomic.Int32
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var review authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		review.Status = authorizationv1.SubjectAccessReviewStatus{
			Allowed: review.Spec.User == "ann", Denied: review.Spec.User == "eve",
			Reason: "the webhook says so",
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer hook.Close()
	file, kubeconfig := filepath.Join(t.TempDir(), "authz.yaml"), dialtest.Kubeconfig(t, hook, hook.URL, "")
	text := fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: hook.example.com
  webhook:
    timeout: 30s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}
    matchConditions:
    - expression: has(request.resourceAttributes) && request.resourceAttributes.namespace == 'guarded'
- {type: RBAC, name: rbac}
`, kubeconfig)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	entries, err := LoadFile(file, dial.Operator(nil))
	if err != nil {
		t.Fatal(err)
	}
	if files := WebhookFiles(file); !slices.Equal(files, []string{kubeconfig}) {
		t.Errorf("files %q", files)
	}
	chain, err := NewChain(Arrange(entries, Native{Node: fixed{"Node", NoOpinion}, RBAC: fixed{"RBAC", Allow}}, nil, nil)...)
	if err != nil {
		t.Fatal(err)
	}
	question := func(name, namespace string) Attributes {
		return authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: name}, Verb: "get", Namespace: namespace, Resource: "pods",
			ResourceRequest: true, APIVersion: "v1",
		}
	}
	for _, c := range []struct {
		who, namespace string
		want           Decision
		reason         string
		asked          int32
	}{
		{"ann", "free", Allow, "by RBAC", 0},
		{"ann", "guarded", Allow, "the webhook says so", 1},
		{"ann", "guarded", Allow, "the webhook says so", 1},
		{"eve", "guarded", Deny, "the webhook says so", 2},
		{"joe", "guarded", Allow, "by RBAC", 3},
	} {
		d, reason, err := chain.Authorize(t.Context(), question(c.who, c.namespace))
		if d != c.want || reason != c.reason || err != nil || asked.Load() != c.asked {
			t.Errorf("%s in %s: %s %q %v, asked %d times", c.who, c.namespace, Text(d), reason, err, asked.Load())
		}
	}
	hook.Close()
	if d, _, err := chain.Authorize(t.Context(), question("max", "guarded")); d != Deny || err == nil {
		t.Errorf("without its webhook: %s, %v", Text(d), err)
	}
}
