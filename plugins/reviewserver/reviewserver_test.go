// SPDX-License-Identifier: Apache-2.0

package reviewserver_test

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/point"
	"github.com/wasmplane/wasmplane/plugins/reviewserver"
)

const entries = `
plugins:
  - name: labeller
    source: file:canned.wasm
    points: [admission.mutate]
    match: {rules: [{operations: [CREATE], resources: [pods]}], objectSelector: {matchLabels: {app: web}}}
    settings: {patch: [{op: add, path: /metadata/labels/a, value: b}], warnings: [look out], auditAnnotations: {k: v}}
  - name: refuser
    source: file:canned.wasm
    points: [admission.validate]
    failurePolicy: Ignore
    settings: {allowed: false, message: too big, code: 422}
  - name: guard
    source: file:canned.wasm
    points: [authorization]
    settings: {decision: deny, reason: closed}
`

func load(t *testing.T) *loader.Loader {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "canned.wasm"), plugintest.Canned(t), 0o600); err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Plugins []yaml.Node `yaml:"plugins"`
	}
	if err := yaml.Unmarshal([]byte(entries), &doc); err != nil {
		t.Fatal(err)
	}
	list, err := manifest.ParseAll(doc.Plugins)
	if err != nil {
		t.Fatal(err)
	}
	l, err := loader.New(t.Context(), loader.Config{InProcess: true, Dir: dir, Entries: list})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

func serve(t *testing.T, l *loader.Loader, may bool) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(reviewserver.Handler(reviewserver.Config{
		Admission: l.AdmissionPlugins, Authorizers: l.Authorizers, MayAuthorize: func(*http.Request) bool { return may },
		Logger: slog.New(slog.DiscardHandler),
	}))
	t.Cleanup(s.Close)
	return s
}

func post(t *testing.T, url, body string, answer any) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(b, answer); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
	}
	return resp.StatusCode
}

// review is a request for admission of a pod, as an API server sends it.
func review(t *testing.T, operation admissionv1.Operation, labels string) string {
	t.Helper()
	object := []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"default","labels":` + labels + `},"spec":{"containers":[{"name":"c","image":"a:1"}]}}`)
	q := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "705ab4f5", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
			Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Name:     "web", Namespace: "default", Operation: operation, Options: runtime.RawExtension{Raw: []byte(`{"kind":"CreateOptions"}`)},
		},
	}
	if operation == admissionv1.Delete {
		q.Request.OldObject.Raw = object
	} else {
		q.Request.Object.Raw = object
	}
	b, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestReviews(t *testing.T) {
	s := serve(t, load(t), true)
	var a admissionv1.AdmissionReview
	if code := post(t, s.URL+"/mutate/labeller", review(t, admissionv1.Create, `{"app":"web"}`), &a); code != http.StatusOK {
		t.Fatalf("status %d", code)
	}
	r := a.Response
	if a.Kind != "AdmissionReview" || r.UID != "705ab4f5" || !r.Allowed ||
		string(r.Patch) != `[{"op":"add","path":"/metadata/labels/a","value":"b"}]` ||
		*r.PatchType != admissionv1.PatchTypeJSONPatch || r.Warnings[0] != "look out" || r.AuditAnnotations["k"] != "v" {
		t.Errorf("response %+v", r)
	}
	a = admissionv1.AdmissionReview{}
	if post(t, s.URL+"/mutate/labeller", review(t, admissionv1.Create, `{"app":"db"}`), &a); !a.Response.Allowed || a.Response.Patch != nil {
		t.Errorf("an object that the entry does not select: %+v", a.Response)
	}
	a = admissionv1.AdmissionReview{}
	post(t, s.URL+"/validate/refuser", review(t, admissionv1.Delete, `{}`), &a)
	if r := a.Response; r.Allowed || r.Result.Code != 422 || !strings.Contains(r.Result.Message, "too big") {
		t.Errorf("response %+v", r)
	}
	for path, want := range map[string]int{"/validate/nobody": 404, "/authorize/never": 404} {
		if code := post(t, s.URL+path, review(t, admissionv1.Create, `{}`), &a); code != want {
			t.Errorf("%s: status %d", path, code)
		}
	}
	for _, body := range []string{
		"", "{", "[]", "{}", `{"request":{"object":[1]}}`,
		strings.Replace(review(t, admissionv1.Create, `{}`), `"object":{`, `"object":7,"x":{`, 1),
	} {
		if code := post(t, s.URL+"/validate/refuser", body, &a); code != http.StatusBadRequest {
			t.Errorf("%q: status %d", body, code)
		}
	}
	if code := post(t, s.URL+"/validate/refuser", strings.Repeat(" ", 9<<20), &a); code != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d for a huge body", code)
	}
}

func TestAuthorization(t *testing.T) {
	l := load(t)
	const question = `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"jane","groups":["devs"],"resourceAttributes":{"verb":"get","resource":"pods","namespace":"x"}}}`
	var a authorizationv1.SubjectAccessReview
	if code := post(t, serve(t, l, true).URL+"/authorize/before", question, &a); code != http.StatusOK || !a.Status.Denied || a.Status.Allowed || !strings.Contains(a.Status.Reason, "closed") {
		t.Errorf("status %d, %+v", code, a.Status)
	}
	a = authorizationv1.SubjectAccessReview{}
	if post(t, serve(t, l, true).URL+"/authorize/after", question, &a); a.Status.Denied || a.Status.Allowed {
		t.Errorf("nobody stands behind: %+v", a.Status)
	}
	if code := post(t, serve(t, l, false).URL+"/authorize/before", question, &a); code != http.StatusUnauthorized {
		t.Errorf("status %d for somebody unknown", code)
	}
	files := map[string]string{"before": "/etc/b.yaml", "after": "/etc/a.yaml"}
	var config struct {
		Kind        string
		Authorizers []struct {
			Type    string
			Webhook struct {
				FailurePolicy  string `yaml:"failurePolicy"`
				ConnectionInfo struct {
					KubeConfigFile string `yaml:"kubeConfigFile"`
				} `yaml:"connectionInfo"`
				MatchConditions []struct{ Expression string } `yaml:"matchConditions"`
			}
		}
	}
	if err := yaml.Unmarshal(reviewserver.AuthorizationConfiguration(reviewserver.Authorization{Before: true}, files), &config); err != nil {
		t.Fatal(err)
	}
	if len(config.Authorizers) != 3 || config.Authorizers[0].Webhook.ConnectionInfo.KubeConfigFile != "/etc/b.yaml" ||
		config.Authorizers[0].Webhook.FailurePolicy != "Deny" || len(config.Authorizers[0].Webhook.MatchConditions) != 3 || config.Authorizers[2].Type != "RBAC" {
		t.Errorf("configuration %+v", config)
	}
}

func TestRegistration(t *testing.T) {
	l := load(t)
	client := fake.NewClientset()
	ca := []byte("first")
	r := &reviewserver.Registration{
		Client: client, URL: "https://example.com:9443/", CA: func() []byte { return ca }, Exclude: []string{"kube-system"},
		Logger: slog.New(slog.DiscardHandler),
		Versions: func() []*point.Version {
			var out []*point.Version
			for _, p := range l.AdmissionPlugins() {
				out = append(out, l.Plugin(p.Name()).Current())
			}
			return out
		},
	}
	if err := r.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	api := client.AdmissionregistrationV1()
	m, err := api.MutatingWebhookConfigurations().Get(t.Context(), reviewserver.ConfigurationName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := m.Webhooks[0]
	if len(m.Webhooks) != 1 || w.Name != "labeller.plugins.wasmplane.dev" ||
		*w.ClientConfig.URL != "https://example.com:9443/mutate/labeller" ||
		w.Rules[0].Resources[0] != "pods" || w.Rules[0].APIGroups[0] != "*" || *w.FailurePolicy != admissionregistrationv1.Fail ||
		w.ObjectSelector.MatchLabels["app"] != "web" || w.NamespaceSelector.MatchExpressions[0].Values[0] != "kube-system" {
		t.Errorf("registered %+v", w)
	}
	// The authority is renewed, and the plugins stay: only the bundle changes.
	ca = []byte("second")
	r.Service = "plugins/webhook:8443"
	if err := r.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	v, err := api.ValidatingWebhookConfigurations().Get(t.Context(), reviewserver.ConfigurationName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if c := v.Webhooks[0].ClientConfig; !bytes.Equal(c.CABundle, ca) || c.URL != nil || c.Service.Namespace != "plugins" ||
		*c.Service.Port != 8443 || *c.Service.Path != "/validate/refuser" || *v.Webhooks[0].FailurePolicy != admissionregistrationv1.Ignore {
		t.Errorf("registered %+v", v.Webhooks[0])
	}
	before := len(client.Actions())
	if err := r.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, a := range client.Actions()[before:] {
		if a.GetVerb() != "get" {
			t.Errorf("%s without a change", a.GetVerb())
		}
	}
	for range 2 {
		if err := r.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := api.ValidatingWebhookConfigurations().List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("%d are left, %v", len(list.Items), err)
	}
	for text, ok := range map[string]bool{"a/b": true, "a/b:8443": true, "a": false, "a/b:x": false, "/b": false, "a/b:99999": false} {
		if _, _, _, err := reviewserver.ParseService(text); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}
