// SPDX-License-Identifier: Apache-2.0

package gotool

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAModuleIsFoundByTheVersionThatIsUsed(t *testing.T) {
	version, folder, err := Module(t.Context(), "", "k8s.io/kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(version, "v1.") {
		t.Errorf("the version is %q", version)
	}
	if _, err := os.Stat(filepath.Join(folder, "LICENSE")); err != nil {
		t.Error(err)
	}
	if _, _, err := Module(t.Context(), "", "example.org/none"); err == nil || !strings.Contains(err.Error(), "example.org/none") {
		t.Errorf("a module that nobody uses: %v", err)
	}
}
