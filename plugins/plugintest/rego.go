// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var regotool sync.Map // root -> func() error

// Regotool builds Open Policy Agent's compiler and built-in functions, as a tool of
// its own (plugins/foreign/testdata/rego says what it does), and returns its path.
func Regotool(tb testing.TB) string {
	tb.Helper()
	root := Root(tb)
	path := filepath.Join(root, "build", "regotool")
	once, _ := regotool.LoadOrStore(root, sync.OnceValue(func() error {
		cmd := exec.Command("go", "build", "-o", path, ".") //nolint:noctx // one build for all tests of a process
		cmd.Dir = filepath.Join(root, "plugins", "foreign", "testdata", "rego")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build the compiler of Rego: %w\n%s", err, out)
		}
		return nil
	}))
	if err := once.(func() error)(); err != nil {
		tb.Fatal(err)
	}
	return path
}
