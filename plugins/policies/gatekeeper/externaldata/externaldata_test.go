// SPDX-License-Identifier: Apache-2.0

package externaldata_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/externaldata"
)

// stored are the Providers of a cluster.
type stored []runtime.Object

func (s stored) List(context.Context, schema.GroupVersionKind, string, labels.Selector) ([]runtime.Object, error) {
	return s, nil
}

func provider(name, url string, ca []byte) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": externaldata.Group + "/v1beta1", "kind": externaldata.Kind, "metadata": map[string]any{"name": name},
		"spec": map[string]any{"url": url, "caBundle": base64.StdEncoding.EncodeToString(ca)},
	}}
}

// serve is a provider over TLS, and its authority's certificate. It knows all keys but "unknown", of "number" a number, and
// nothing of "silent".
func serve(t *testing.T, idempotent bool, calls *atomic.Int32) (url string, ca []byte) {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		var q struct {
			Request struct {
				Keys []string `json:"keys"`
			} `json:"request"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		items := []any{}
		for _, key := range q.Request.Keys {
			switch key {
			case "silent":
			case "unknown":
				items = append(items, map[string]any{"key": key, "error": "never heard of it"})
			case "number":
				items = append(items, map[string]any{"key": key, "value": 7})
			default:
				items = append(items, map[string]any{"key": key, "value": "mirror/" + key})
			}
		}
		answer := map[string]any{"items": items, "idempotent": idempotent}
		if err := json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": externaldata.Group + "/v1beta1", "kind": "ProviderResponse",
			"response": answer,
		}); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// foreign is the certificate of an authority that signed none of the servers.
func foreign(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "another"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestValuesForMutators are texts of a provider that says that it may be asked again, by the authority that its object names.
func TestValuesForMutators(t *testing.T) {
	var calls atomic.Int32
	url, ca := serve(t, true, &calls)
	fickle, fickleCA := serve(t, false, &calls)
	gone := provider("gone", "https://127.0.0.1:1", ca)
	providers := externaldata.New(stored{
		provider("good", url, ca), provider("fickle", fickle, fickleCA), provider("other", url, foreign(t)),
		gone,
	},
		dial.Operator(nil))
	for _, c := range []struct{ provider, key, want, err string }{
		{"good", "x", "mirror/x", ""},
		{"good", "unknown", "", "never heard of it"},
		{"good", "number", "", "no text"},
		{"good", "silent", "", "says nothing"},
		{"fickle", "x", "", "idempotent"},
		{"gone", "x", "", "cannot be reached"},
		{"other", "x", "", "cannot be reached"},
		{"none", "x", "", `there is no Provider "none"`},
	} {
		got, err := providers.Values(t.Context(), c.provider, []string{c.key})(c.key)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s about %s: %q, %v; want %q, %q", c.provider, c.key, got, err, c.want, c.err)
		}
	}
	before := calls.Load()
	if got, err := providers.Values(t.Context(), "good", []string{"x"})("x"); got != "mirror/x" || err != nil || calls.Load() != before {
		t.Errorf("a value that is remembered: %q, %v, after %d calls", got, err, calls.Load()-before)
	}
}
