// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestNestedModulesFollow: a module below this one that builds it has the versions that it needs. After a change of go.mod,
// go mod tidy there too; else nothing in that module builds, and go test ./... here does not see it.
func TestNestedModulesFollow(t *testing.T) {
	for _, dir := range []string{"test/conformance"} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-mod=readonly", "./...")
		cmd.Dir = filepath.Join("..", "..", filepath.FromSlash(dir))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("in %s: %v (cd %s && go mod tidy)\n%s", dir, err, dir, out)
		}
	}
}
