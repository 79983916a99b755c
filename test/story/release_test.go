// SPDX-License-Identifier: Apache-2.0

package story

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

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
		ts.Check(linked(args[0], file))
		return
	}
	cmd := exec.Command("go", "build", "-ldflags=-s -w -X main.version="+args[0], "-o", file, "./test/story/testdata/broken")
	cmd.Dir = built.Root
	if out, err := cmd.CombinedOutput(); err != nil {
		ts.Fatalf("build a broken release: %v\n%s", err, out)
	}
}

// releases are this tree as the versions that stories want: each is linked once.
var releases sync.Map

// linked builds a version of this tree, unless that was done before.
func linked(version, file string) error {
	build := sync.OnceValues(func() (string, error) {
		at := filepath.Join(built.Dir, "releases", version, "wasmplane")
		return at, errors.Join(os.MkdirAll(filepath.Dir(at), 0o755),
			harness.Execute("make", "-s", "-C", built.Root, "build", "VERSION="+version, "BINARY="+at))
	})
	once, _ := releases.LoadOrStore(version, build)
	at, err := once.(func() (string, error))()
	if err != nil {
		return err
	}
	// An upgrade puts files in the place of others, and writes into none.
	return os.Link(at, file)
}

// former FILE is a former release, which calls itself v0.3.0.
func (s *stage) former(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: former FILE")
	}
	const version = "v0.3.0"
	from := os.Getenv("WASMPLANE_FORMER")
	if from == "" {
		s.release(ts, false, []string{version, args[0]})
		return
	}
	file := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(filepath.Dir(file), 0o755))
	ts.Check(harness.Execute("cp", from, file))
}
