// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
)

// BenchmarkStart makes instances of components one after the other, of which one is there already, as the request does
// that finds none idle, and the same with their first call; "private" is what each of twenty has of its own.
// WASMPLANE_BENCH_COMPONENTS is a folder with components beside the one that is made here, which has 11 MB of data as one
// in Python has.
func BenchmarkStart(b *testing.B) {
	components := map[string][]byte{"made": large(11 << 20)}
	if dir := os.Getenv("WASMPLANE_BENCH_COMPONENTS"); dir != "" {
		found, err := filepath.Glob(filepath.Join(dir, "*.wasm"))
		if err != nil || len(found) == 0 {
			b.Fatalf("no components in %s: %v", dir, err)
		}
		for _, path := range found {
			wasm, err := os.ReadFile(path)
			if err != nil {
				b.Fatal(err)
			}
			components[strings.TrimSuffix(filepath.Base(path), ".wasm")] = wasm
		}
	}
	h, err := host.New(b.Context(), host.Config{CacheDir: filepath.Join(os.TempDir(), "wasmplane-bench-start")})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = h.Close() })
	for name, wasm := range components {
		m := load(b, h, wasm, host.Options{Name: name, Limits: host.Limits{Memory: 64 << 20, Instances: 32, StartDeadline: time.Minute}})
		if err := m.Warm(b.Context()); err != nil {
			b.Fatal(err)
		}
		one, err := m.Lease(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) { startInstances(b, m, func(*host.Instance) error { return nil }) })
		b.Run(name+"+call", func(b *testing.B) {
			startInstances(b, m, func(in *host.Instance) error {
				_, err := in.Describe(b.Context())
				return err
			})
		})
		m.Discard(one)
	}
}

func startInstances(b *testing.B, m *host.Module, use func(*host.Instance) error) {
	b.ReportAllocs()
	before := ownMemory(b)
	var held []*host.Instance
	for range 20 {
		in, err := m.Lease(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		held = append(held, in)
		if err := use(in); err != nil {
			b.Fatal(err)
		}
	}
	own := (ownMemory(b) - before) / int64(len(held))
	for _, in := range held {
		m.Discard(in)
	}
	done := cpuTime(b)
	for b.Loop() {
		in, err := m.Lease(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if err := use(in); err != nil {
			b.Fatal(err)
		}
		m.Discard(in)
	}
	done()
	b.ReportMetric(float64(own)/1024, "private-KiB")
}

// ownMemory is what this process has for itself alone.
func ownMemory(tb testing.TB) (bytes int64) {
	tb.Helper()
	debug.FreeOSMemory() // Go's garbage is not counted
	smaps, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(smaps)) {
		if f := strings.Fields(line); f[0] == "Anonymous:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				tb.Fatal(err)
			}
			return n << 10
		}
	}
	tb.Fatal("the kernel does not say how much is anonymous")
	return 0
}
