// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/plugins/loader"
)

// TestAModuleBeyondALimitIsWrittenDown, with the limit's name, whichever part refuses it.
func TestAModuleBeyondALimitIsWrittenDown(t *testing.T) {
	dir := t.TempDir()
	small := tiny(t, "no", "")
	replaceFile(t, filepath.Join(dir, "small.wasm"), small)
	replaceFile(t, filepath.Join(dir, "many.wasm"), append(bytes.Clone(small), bytes.Repeat([]byte{0, 2, 1, 'x'}, 1100)...))
	for name, c := range map[string]struct {
		entry, want string
	}{
		"the source's":   {"source: 'file:small.wasm', fetch: {maxSize: 16}", "fetch.maxSize"},
		"the metering's": {"source: 'file:many.wasm'", "custom sections"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			l := newLoader(t, loader.Config{
				InProcess: true, Dir: dir, Entries: entries(t, "plugins:\n  - {name: p, points: [admission.validate], "+c.entry+"}\n"),
				Attempts: attempts.New(attempts.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}),
			})
			if err := l.Load(t.Context()); err == nil {
				t.Fatal("it was loaded")
			}
			for _, want := range []string{"attempt=module", c.want, "kind=Plugin", "name=p"} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the ledger has %q, want %q", log.String(), want)
				}
			}
		})
	}
}
