// SPDX-License-Identifier: Apache-2.0

package externaldata

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/core/dial"
)

// What is remembered is bounded by its size, however large answers are, and a large one displaces nothing.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	p := New(nil, dial.Operator(nil))
	one := &Provider{id: "one "}
	p.remember(one, "small", "x", false)
	p.remember(one, "large", strings.Repeat("x", answerLimit), false)
	if _, ok := p.remembered(one, "small"); !ok || len(p.kept) != 1 {
		t.Errorf("%d answers are remembered, and the small one: %v", len(p.kept), ok)
	}
	for i := range 2000 {
		p.remember(one, fmt.Sprint(i), strings.Repeat("x", 100<<10), false)
		if p.bytes > mostKeptBytes {
			t.Fatalf("%d bytes are remembered", p.bytes)
		}
	}
	for range 10 {
		p.remember(one, "again", "x", false)
	}
	sum := 0
	for _, k := range p.kept {
		sum += k.bytes
	}
	if sum != p.bytes || sum == 0 {
		t.Errorf("%d bytes are counted, and %d there", p.bytes, sum)
	}
}

// Whatever a Provider says, and whatever its server answers, is an answer or an error that does not quote what is no answer.
func FuzzAnswers(f *testing.F) {
	f.Add(`{"kind":"ProviderResponse","response":{"items":[{"key":"a","value":"b"},{"key":"x","value":1},{"key":"a","error":"no"}],"systemError":""}}`)
	f.Add(`{"kind":"providerresponse","response":{"items":[{"key":"a","value":{"a":[[[[1e999]]]]}}]}}`)
	f.Add(`{"kind":"ProviderResponse","response":null}`)
	f.Add(strings.Repeat("[", 20_000))
	var answer string
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(answer)) }))
	f.Cleanup(s.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	provider, err := Read((&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": Group + "/v1beta1", "kind": Kind, "metadata": map[string]any{"name": "p"},
		"spec": map[string]any{"url": s.URL, "caBundle": base64.StdEncoding.EncodeToString(ca)},
	}}).Object)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		answer = text
		p := New(nil, dial.Operator(nil))
		r, code, err := p.post(t.Context(), provider, []string{"a"})
		if err != nil {
			if len(text) > 8 && strings.Contains(err.Error(), text) {
				t.Errorf("the error quotes what is no answer: %v", err)
			}
			return
		}
		if code != http.StatusOK {
			t.Errorf("status %d", code)
		}
		for _, item := range r.Response.Items {
			p.remember(provider, item.Key, item.Value, false)
			if _, err := json.Marshal(item.Value); err != nil {
				t.Errorf("a value that is none: %v", err)
			}
		}
	})
}
