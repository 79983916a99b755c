// SPDX-License-Identifier: Apache-2.0

package story

import (
	"os/exec"
	"path/filepath"
	"regexp"

	"github.com/rogpeppe/go-internal/testscript"
)

var objectsAt = regexp.MustCompile(`objects at (\S+)`)

// objects BUCKET KEY SECRET CA starts somebody else's object store, with a bucket for who has
// the key. CA is the file that its authority is written to, OBJECTS where it is.
func (s *stage) objects(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: objects BUCKET KEY SECRET CA")
	}
	program := filepath.Join(built.Dir, "objectstore")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = filepath.Join(built.Root, "test", "story", "testdata", "objectstore")
	if out, err := build.CombinedOutput(); err != nil {
		ts.Fatalf("build the object store: %v\n%s", err, out)
	}
	args[3] = ts.MkAbs(args[3])
	p, err := s.Start("objects", exec.Command(program, args...))
	ts.Check(err)
	found, err := p.AwaitLine(objectsAt)
	ts.Check(err)
	ts.Setenv("OBJECTS", found[1])
}
