// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/externaldata"
	rego2wasm "github.com/wasmplane/wasmplane/plugins/rego"
)

// asking is a policy that asks a provider about images, as Gatekeeper's documentation does.
const asking = `package asking

violation[{"msg": msg}] {
	images := [img | img = input.review.object.spec.containers[_].image]
	response := external_data({"provider": "signed", "keys": images})
	answered(response)
	msg := sprintf("said: %v", [response])
}

answered(r) { count(r.errors) > 0 }
answered(r) { r.system_error != "" }
answered(r) { [_, v] := r.responses[_]; v == "no" }
`

// providers are those of a cluster.
type providers map[string]map[string]any

func (p providers) List(context.Context, schema.GroupVersionKind, string, labels.Selector) (out []runtime.Object, err error) {
	for name, spec := range p {
		out = append(out, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "externaldata.gatekeeper.sh/v1beta1", "kind": "Provider", "metadata": map[string]any{"name": name}, "spec": spec,
		}})
	}
	return out, nil
}

// TestAConstraintAsksAProvider, which is a server with a certificate of its own.
func TestAConstraintAsksAProvider(t *testing.T) {
	wasm, err := rego2wasm.Compile(t.Context(), rego2wasm.Policy{
		Files:   []rego2wasm.File{{Name: "asking", Text: asking}},
		Version: rego2wasm.V0,
	})
	if err != nil {
		t.Fatal(err)
	}
	var answer atomic.Pointer[http.HandlerFunc]
	var asked atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		(*answer.Load())(w, r)
	}))
	defer server.Close()
	says := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var q struct {
				Kind    string
				Request struct{ Keys []string }
			}
			if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.Kind != "ProviderRequest" || len(q.Request.Keys) != 1 {
				http.Error(w, "", http.StatusBadRequest)
				return
			}
			fmt.Fprintf(w, `{"kind":"ProviderResponse","response":%s}`, strings.ReplaceAll(text, "KEY", q.Request.Keys[0]))
		}
	}
	authority := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	other, err := json.Marshal(authority[:len(authority)/2])
	if err != nil {
		t.Fatal(err)
	}
	spec := map[string]any{"url": server.URL, "timeout": int64(2), "caBundle": authority}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		spec   map[string]any
		want   string
		asked  int32
	}{
		"yes, remembered":   {says(`{"items":[{"key":"KEY","value":"yes"}]}`), spec, "", 1},
		"no":                {says(`{"items":[{"key":"KEY","value":"no"}]}`), spec, `"responses": [["nginx:latest", "no"]]`, 1},
		"an error":          {says(`{"items":[{"key":"KEY","error":"unknown"}]}`), spec, `"errors": [["nginx:latest", "unknown"]]`, 2},
		"of all":            {says(`{"systemError":"full"}`), spec, `"system_error": "full"`, 2},
		"what nobody asked": {says(`{"items":[{"key":"other","value":"no"}]}`), spec, "", 2},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/else", http.StatusTemporaryRedirect)
		}, spec, "status 307", 2},
		"too much":       {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2<<20)) }, spec, "at most 1048576 bytes", 2},
		"something else": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"kind":"List"}`)) }, spec, "did not answer with a ProviderResponse", 2},
		"no provider":    {says(`{}`), nil, `there is no Provider`, 0},
		"without TLS":    {says(`{}`), map[string]any{"url": strings.Replace(server.URL, "https", "http", 1), "caBundle": authority}, "expected https://", 0},
		"no authority":   {says(`{}`), map[string]any{"url": server.URL, "caBundle": string(other)}, "spec.caBundle", 0},
		"anybody":        {says(`{}`), map[string]any{"url": server.URL, "caBundle": authority, "insecureTLSSkipVerify": true}, "spec.insecureTLSSkipVerify", 0},
	} {
		t.Run(name, func(t *testing.T) {
			asked.Store(0)
			answer.Store(&c.answer)
			all := providers{}
			if c.spec != nil {
				all["signed"] = c.spec
			}
			f := hostfn.New(hostfn.Backend{External: externaldata.New(all, dial.Operator(nil))})
			defer f.Close()
			l := load(t, wasm, f, "abi: gatekeeper\nlimits: {deadline: 10s}")
			for range 2 {
				err := apply(t, l, creating())
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, expected %q", err, c.want)
				}
			}
			if n := asked.Load(); n != c.asked {
				t.Errorf("it was asked %d times, expected %d", n, c.asked)
			}
		})
	}
	// An address that may not be connected to, and a policy for which there are no providers.
	l := load(t, wasm, hostfn.New(hostfn.Backend{External: externaldata.New(providers{"signed": spec}, dial.Public(nil, nil))}),
		"abi: gatekeeper")
	if err := apply(t, l, creating()); err == nil || !strings.Contains(err.Error(), "cannot be reached") {
		t.Error(err)
	}
	if _, err := tryLoad(t, wasm, nil, "abi: gatekeeper"); err == nil || !strings.Contains(err.Error(), "external_data") {
		t.Error(err)
	}
}
