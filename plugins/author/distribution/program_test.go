// SPDX-License-Identifier: Apache-2.0

package distribution_test

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/wasmplane/wasmplane/plugins/author/distribution"
	"github.com/wasmplane/wasmplane/plugins/component/componenttest"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// TestProgramsArePushedAsWhatTheyAre, and what no pod could run is not.
func TestProgramsArePushedAsWhatTheyAre(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	at := strings.TrimPrefix(server.URL, "http://") + "/programs/one"
	module := func(text string) []byte {
		wasm, err := wat.Assemble(text)
		if err != nil {
			t.Fatal(err)
		}
		return wasm
	}
	for want, program := range map[string][]byte{
		"a module, a command":           module(`(module (func (export "_start")))`),
		"[main.wasm#work]":              module(`(module (func (export "work")))`),
		"exports no function":           module(`(module)`),
		"not a valid WebAssembly":       []byte("MZ"),
		"a component, a server of HTTP": componenttest.HTTPServer("").Bytes(),
		"exports neither wasi:cli/run":  componenttest.New().Bytes(),
		"not a valid component":         append([]byte("\x00asm\x0d\x00\x01\x00"), 0xff),
	} {
		file := filepath.Join(t.TempDir(), "main.wasm")
		if err := os.WriteFile(file, program, 0o600); err != nil {
			t.Fatal(err)
		}
		p, what, err := distribution.Registry{PlainHTTP: true}.PushProgram(t.Context(), file, "oci://"+at+":1")
		switch {
		case err != nil:
			if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
				t.Errorf("%s: %v", want, err)
			}
		case !strings.Contains(what, want):
			t.Errorf("%s: it is %s", want, what)
		case p.Source != at+":1@"+p.Digest:
			t.Errorf("%s: an image is named %s", want, p.Source)
		}
	}
}
