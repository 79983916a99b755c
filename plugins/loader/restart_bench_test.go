// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// BenchmarkRestart loads twenty plugins, compiled before, as a server that comes up
// again does: small ones, and ones in Go.
func BenchmarkRestart(b *testing.B) {
	root := plugintest.Root(b)
	plugintest.Example(b, "no-privileged")
	plugintest.Example(b, "add-label")
	for _, c := range []struct{ kind, module, more string }{
		{"small", "no-privileged", ""}, {"go", "add-label", ", settings: {label: team, value: x}"},
	} {
		b.Run(c.kind, func(b *testing.B) {
			var text strings.Builder
			text.WriteString("plugins:\n")
			for i := range 20 {
				fmt.Fprintf(&text, "  - {name: p%d, source: \"file:build/wasm/%s.wasm\"%s}\n", i, c.module, c.more)
			}
			all, cache := entries(b, text.String()), filepath.Join(b.TempDir(), "cache")
			load := func() (wall, cpu time.Duration) {
				start, used := time.Now(), processTime(b)
				l, err := loader.New(b.Context(), loader.Config{InProcess: true, Dir: root, CacheDir: cache, Entries: all})
				if err == nil {
					err = l.Load(b.Context())
				}
				wall, cpu = time.Since(start), processTime(b)-used
				if err != nil {
					b.Fatal(err)
				}
				if err := l.Close(b.Context()); err != nil {
					b.Fatal(err)
				}
				return wall, cpu
			}
			load() // fills the cache
			var wall, cpu time.Duration
			for b.Loop() {
				w, c := load()
				wall, cpu = wall+w, cpu+c
			}
			b.ReportMetric(float64(wall.Microseconds())/float64(b.N)/20/1000, "ms/plugin")
			b.ReportMetric(float64(cpu.Microseconds())/float64(b.N)/20/1000, "cpu-ms/plugin")
		})
	}
}

// processTime is the processor time of the whole process.
func processTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
