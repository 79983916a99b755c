// SPDX-License-Identifier: Apache-2.0

package story

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
)

// serveProvider is a provider of Gatekeeper's external data over TLS: of an image whose name begins with "bad" it says an error,
// of others the mirror's name. It tells where it is, and its authority in base64.
func serveProvider() {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Request struct {
				Keys []string `json:"keys"`
			} `json:"request"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		items := []map[string]string{}
		for _, key := range q.Request.Keys {
			if strings.HasPrefix(key, "bad") {
				items = append(items, map[string]string{"key": key, "error": "nobody signed " + key})
				continue
			}
			items = append(items, map[string]string{"key": key, "value": "mirror.example.com/" + strings.TrimPrefix(key, "mirror.example.com/")})
		}
		check(json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": "externaldata.gatekeeper.sh/v1beta1", "kind": "ProviderResponse",
			"response": map[string]any{"items": items, "idempotent": true},
		}))
	}))
	defer s.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	fmt.Printf("provider at %s by %s\n", s.URL, base64.StdEncoding.EncodeToString(authority))
	select {}
}
