// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRun: the script of make test ends as its report says.
func TestRun(t *testing.T) {
	for _, c := range []struct {
		name, env string
		code      int
		said      string
	}{
		{"passes at the second try", "", 0, "\n3 passed, 0 failed, 0 skipped\n"},
		{"no second try", "AGAIN=0", 1, "2 failed, 0 skipped\n"},
		{"fails each time", "FLAKY_ALWAYS=1", 1, "\n1 passed, 3 failed, 0 skipped\n"},
		{"failed before", "FAILED_BEFORE=make fresh", 1, "--- FAIL: make fresh"},
		{"go test is ended", "FLAKY_ENDS=1", 137, "go test was ended: 137\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "bash", "test/run.sh", "1m")
			cmd.Dir = filepath.Join("..", "..", "..")
			cmd.Env = append(os.Environ(), "PACKAGES=./test/internal/report/testdata/flaky", "AS_ROOT=0", "AGAIN=", "FAILED_BEFORE=",
				"FLAKY_ONCE="+filepath.Join(t.TempDir(), "once"), c.env)
			out, err := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.said) {
				t.Errorf("ended with %d, %v; expected %d and %q:\n%s", code, err, c.code, c.said, out)
			}
		})
	}
}
