// SPDX-License-Identifier: Apache-2.0

package story

import (
	"os/exec"
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"
)

// ahead DAYS FILE builds this tree as a program whose wall clock is some days ahead. The kernel
// has no namespaces for that clock.
func (s *stage) ahead(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: ahead DAYS FILE")
	}
	dir := ts.MkAbs("overlay")
	for _, c := range [][]string{
		{"go", "run", "./test/clock", dir, args[0]},
		{"go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-ldflags", "-s -w", "-o", ts.MkAbs(args[1]), "./cmd/wasmplane"},
	} {
		cmd := exec.Command(c[0], c[1:]...)
		cmd.Dir = built.Root
		if out, err := cmd.CombinedOutput(); err != nil {
			ts.Fatalf("%v: %v\n%s", c, err, out)
		}
	}
}
