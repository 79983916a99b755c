// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// An entry becomes a plugin of each point that its module names. Load ends when every entry is in force or has a reason
// in its status.
func ExampleLoader_Load() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "loader-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	module, err := assemble("closed on Sundays", "") // a module that refuses everything with a message
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := os.WriteFile(filepath.Join(dir, "sundays.wasm"), module, 0o600); err != nil {
		fmt.Println(err)
		return
	}
	l, err := loader.New(ctx, loader.Config{
		InProcess: true, Dir: dir, // a server compiles in a child process, and keeps a cache
		Entries: []manifest.Entry{parse(`{name: sundays, source: "file:sundays.wasm"}`)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close(ctx)
	if err := l.Load(ctx); err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range l.Status() {
		fmt.Println(s.Name, s.Ready)
	}
	for _, p := range l.AdmissionPlugins() {
		fmt.Println(p.(admission.Validator).Validate(ctx, admissiontest.Creating("pods", pod("nginx:1", nil))))
	}
	// Output:
	// sundays true
	// pods "web" is forbidden: plugin "sundays" denied the request: closed on Sundays
}

// parse reads an entry that has no faults.
func parse(text string) manifest.Entry {
	e, err := manifest.ParseBytes([]byte(text))
	if err != nil {
		panic(err)
	}
	return e
}
