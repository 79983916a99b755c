// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Build is what tests run.
type Build struct {
	// Root is the repository, Dir a temporary folder that everybody may enter.
	Root, Dir string
	// Binary is a copy of wasmplane: whoever builds meanwhile doesn't change what
	// is tested.
	Binary string
	// Hello is the archive of the demo's image.
	Hello string
}

// Prepare makes what a TestMain needs, with make. $WASMPLANE_BIN may name a binary
// to test instead. Remove Dir in the end.
func Prepare(name string) (_ *Build, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("these tests have real nodes and need root: `make test` and `make bench` ask for it")
	}
	b := &Build{}
	if b.Root, err = root(); err != nil {
		return nil, err
	}
	if b.Dir, err = os.MkdirTemp("", name); err != nil {
		return nil, err
	}
	// Closed to others is each data directory; the binary is for nobody too.
	if err := os.Chmod(b.Dir, 0o755); err != nil {
		return nil, err
	}
	source := os.Getenv("WASMPLANE_BIN")
	if source == "" {
		if err := Execute("make", "-s", "-C", b.Root, "build"); err != nil {
			return nil, err
		}
		source = filepath.Join(b.Root, "bin", "wasmplane")
	}
	b.Binary = filepath.Join(b.Dir, "wasmplane")
	if err := Execute("cp", source, b.Binary); err != nil {
		return nil, err
	}
	if err := Execute("make", "-s", "-C", b.Root, "examples", "hello-image"); err != nil {
		return nil, err
	}
	b.Hello = filepath.Join(b.Root, "bin", "images", "hello.tar")
	return b, nil
}

// Binary is the wasmplane that was built last, or $WASMPLANE_BIN.
func Binary(tb testing.TB) string {
	tb.Helper()
	bin := os.Getenv("WASMPLANE_BIN")
	if bin == "" {
		dir, err := root()
		if err != nil {
			tb.Fatal(err)
		}
		bin = filepath.Join(dir, "bin", "wasmplane")
	}
	if _, err := os.Stat(bin); err != nil {
		tb.Fatalf("%v: run `make build` first", err)
	}
	return bin
}

// HelloImage is the archive of the demo's image that was built last.
func HelloImage(tb testing.TB) string {
	tb.Helper()
	dir, err := root()
	if err != nil {
		tb.Fatal(err)
	}
	file := filepath.Join(dir, "bin", "images", "hello.tar")
	if _, err := os.Stat(file); err != nil {
		tb.Fatalf("%v: run `make hello-image` first", err)
	}
	return file
}

// root is the folder of the repository that tests run in.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "cmd", "wasmplane", "main.go")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not within the repository", dir)
		}
	}
}
