// SPDX-License-Identifier: Apache-2.0

package inspection_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/author/authortest"
	"github.com/wasmplane/wasmplane/plugins/author/inspection"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// TestInspectShowsWhatAPolicyWillNeed, though it does not load without the grants; from a file
// whose name is no name of a plugin.
func TestInspectShowsWhatAPolicyWillNeed(t *testing.T) {
	wasm, err := wat.Assemble(`(module (memory (export "memory") 1) (func (export "__guest_call") (param i32 i32) (result i32) (i32.const 0)))`)
	if err != nil {
		t.Fatal(err)
	}
	const name, content = "io.kubewarden.metadata", `{"protocolVersion":"v1","executionMode":"kubewarden-wapc","contextAwareResources":[{"apiVersion":"v1","kind":"Namespace"}]}`
	body := append(append([]byte{byte(len(name))}, name...), content...)
	wasm = append(append(wasm, 0, byte(len(body)&0x7f|0x80), byte(len(body)>>7)), body...)
	path := filepath.Join(t.TempDir(), "My_Policy.v1.wasm")
	if err := os.WriteFile(path, wasm, 0o600); err != nil {
		t.Fatal(err)
	}
	about, err := inspection.Inspect(t.Context(), authortest.Open(t, path))
	if err != nil {
		t.Fatal(err)
	}
	want := inspection.Need{Function: "to read v1 Namespace", Grant: "read: [{resources: [namespaces]}]"}
	if about.Name != "my-policy.v1" || len(about.Needs) != 1 || about.Needs[0] != want {
		t.Errorf("%q needs %+v", about.Name, about.Needs)
	}
	if !strings.Contains(about.Problem, "it needs to read v1 Namespace: grant it with grants.read: [{resources: [namespaces]}]") {
		t.Errorf("problem %q", about.Problem)
	}
}
