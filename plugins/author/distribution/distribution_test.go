// SPDX-License-Identifier: Apache-2.0

package distribution_test

import (
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/wasmplane/wasmplane/plugins/author/authortest"
	"github.com/wasmplane/wasmplane/plugins/author/distribution"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

func TestPushSignPullVerify(t *testing.T) {
	cfg := authortest.Build(t, toolchain.C, "admission.validate")
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	ref := "oci://" + strings.TrimPrefix(server.URL, "http://") + "/team/my-own:1"
	r := distribution.Registry{PlainHTTP: true}
	pushed, err := r.Push(t.Context(), cfg, ref)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.Push(t.Context(), cfg, ref)
	if err != nil || again.Digest != pushed.Digest {
		t.Errorf("pushed again as %+v, %v", again, err)
	}
	dir := t.TempDir()
	private, public, err := distribution.GenerateKey(filepath.Join(dir, "plugin"))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(private); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the private key: %v, %v", info.Mode(), err)
	}
	_, other, err := distribution.GenerateKey(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "pulled.wasm")
	if _, err := r.Pull(t.Context(), ref, out, []string{public}); err == nil {
		t.Error("a module without a signature was pulled")
	}
	if _, err := r.Sign(t.Context(), pushed.Source, private, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Verify(t.Context(), ref, []string{other}); err == nil {
		t.Error("another key verified the signature")
	}
	if _, err := r.Verify(t.Context(), ref, []string{public}); err != nil {
		t.Error(err)
	}
	pulled, err := r.Pull(t.Context(), ref, out, []string{public})
	if err != nil || *pulled != *pushed {
		t.Fatalf("pulled %+v, pushed %+v, %v", pulled, pushed, err)
	}
	a, errA := os.ReadFile(out)
	b, errB := os.ReadFile(filepath.Join(cfg.Dir, "my-own.wasm"))
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Errorf("what was pulled is not what was pushed: %v %v", errA, errB)
	}
	if _, err := r.Sign(t.Context(), out, private, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Verify(t.Context(), out, []string{public}); err != nil {
		t.Error(err)
	}
	if _, err := r.Verify(t.Context(), out, []string{other}); err == nil {
		t.Error("another key verified the file")
	}
	if _, _, err := distribution.GenerateKey(filepath.Join(dir, "plugin")); err == nil {
		t.Error("a key was written over")
	}
}
