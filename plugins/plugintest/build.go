// SPDX-License-Identifier: Apache-2.0

// Package plugintest helps to test plugins and their hosts: it builds the
// examples, runs a module without a cluster, and holds a module against the ABI.
package plugintest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Root is the repository's root directory: the nearest folder above the test's own
// that has this package in it. The path of this file would not
// do, because builds with -trimpath don't know it.
func Root(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "plugins", "plugintest", "build.go")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			tb.Fatal("the test does not run inside the repository: no folder above has plugins/plugintest")
		}
		dir = parent
	}
}

// builds makes that each example is built once in a process.
var builds sync.Map

type build struct {
	once sync.Once
	path string
	err  error
}

// Example builds wasm-examples/NAME by its makefile and returns the module's path.
// make and the compilers' own caches see to it that what is up to date is not built again.
func Example(tb testing.TB, name string) string {
	tb.Helper()
	root := Root(tb)
	b, _ := builds.LoadOrStore(name, &build{})
	one := b.(*build)
	one.once.Do(func() {
		one.path = filepath.Join(root, "build", "wasm", name+".wasm")
		cmd := exec.CommandContext(tb.Context(), "make", "-s", "-C", root, "-f", "wasm-examples/build.mk", "build/wasm/"+name+".wasm")
		if out, err := cmd.CombinedOutput(); err != nil {
			one.err = fmt.Errorf("build example %s: %w\n%s", name, err, out)
		}
	})
	if one.err != nil {
		tb.Fatal(one.err)
	}
	return one.path
}

// Module reads a built example.
func Module(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile(Example(tb, name))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}
