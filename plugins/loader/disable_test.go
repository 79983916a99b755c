// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// TestAPluginIsSwitchedOffByAFile: before the loader begins, and while it runs.
func TestAPluginIsSwitchedOffByAFile(t *testing.T) {
	dir := t.TempDir()
	off := filepath.Join(dir, "off")
	replaceFile(t, filepath.Join(dir, "canned.wasm"), plugintest.Canned(t))
	if err := os.Mkdir(off, 0o700); err != nil {
		t.Fatal(err)
	}
	replaceFile(t, filepath.Join(off, "canned"), nil)
	l := newLoader(t, loader.Config{
		InProcess: true, Dir: dir, DisabledDir: off,
		Entries: entries(t, "plugins: [{name: canned, source: \"file:canned.wasm\", settings: "+refuses+", points: [admission.validate]}]"),
	})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused := func() bool { return chain(t, l, creating(pod("a:1", nil))()) != nil }
	if refused() {
		t.Fatal("a plugin that is switched off refuses")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	await := func(want bool) {
		t.Helper()
		if err := wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, time.Minute, true,
			func(context.Context) (bool, error) { return refused() == want, nil }); err != nil {
			t.Fatalf("it refuses: %v, want %v", !want, want)
		}
	}
	for range 2 {
		if err := os.Remove(filepath.Join(off, "canned")); err != nil {
			t.Fatal(err)
		}
		await(true)
		replaceFile(t, filepath.Join(off, "canned"), nil)
		await(false)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
