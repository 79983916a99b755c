// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzPolicy: an audit policy is an error, or decides. One that cannot be read does not
// take the place of one that could.
func FuzzPolicy(f *testing.F) {
	f.Add([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := &Log{}
		if err := l.readPolicy(); err != nil {
			t.Fatal(err)
		}
		before := l.policy.Load()
		l.policyFile = filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(l.policyFile, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.readPolicy(); (err == nil) == (l.policy.Load() == before) {
			t.Errorf("error %v, taken on: %v", err, l.policy.Load() != before)
		}
	})
}
