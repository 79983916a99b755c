// SPDX-License-Identifier: Apache-2.0

package story

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// release VERSION FILE builds this tree as that version of wasmplane.
// release -broken VERSION FILE makes one that knows its version and does not work.
func (s *stage) release(ts *testscript.TestScript, neg bool, args []string) {
	broken := len(args) == 3 && args[0] == "-broken"
	if broken {
		args = args[1:]
	}
	if neg || len(args) != 2 {
		ts.Fatalf("usage: release [-broken] VERSION FILE")
	}
	file, err := filepath.Abs(ts.MkAbs(args[1]))
	ts.Check(err)
	ts.Check(os.MkdirAll(filepath.Dir(file), 0o755))
	if !broken {
		ts.Check(harness.Execute("make", "-s", "-C", built.Root, "build", "VERSION="+args[0], "BINARY="+file))
		return
	}
	cmd := exec.Command("go", "build", "-ldflags=-s -w -X main.version="+args[0], "-o", file, "./test/story/testdata/broken")
	cmd.Dir = built.Root
	if out, err := cmd.CombinedOutput(); err != nil {
		ts.Fatalf("build a broken release: %v\n%s", err, out)
	}
}
