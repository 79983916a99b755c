// SPDX-License-Identifier: Apache-2.0

// Package rust_test runs the Rust SDK's own tests.
package rust_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestRust(t *testing.T) {
	sources, err := filepath.Glob("src/*.rs")
	if err != nil || len(sources) == 0 {
		t.Fatal("no sources", err)
	}
	for _, s := range sources { // read, so that go test knows what the result depends on
		if _, err := os.ReadFile(s); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(t.TempDir(), "tests")
	build := exec.CommandContext(t.Context(), "rustc", "--edition", "2021", "--test", "-o", bin, "src/lib.rs")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), bin).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
