// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"testing"

	"github.com/wasmplane/wasmplane/core/dial"
)

// FuzzFile: an authorization configuration is an error, or an order without gaps.
func FuzzFile(f *testing.F) {
	f.Add([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: RBAC, name: rbac}, {type: Wasm, name: wasm}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := parseFile(data, dial.Operator(nil))
		if err != nil {
			return
		}
		for _, e := range entries {
			if e.Type == "" || e.Name == "" {
				t.Errorf("%+v", e)
			}
		}
	})
}
