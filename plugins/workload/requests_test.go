// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/plugins/component/componenttest"
	"github.com/wasmplane/wasmplane/plugins/component/link"
	"github.com/wasmplane/wasmplane/plugins/workload/wasihttp"
	"github.com/wasmplane/wasmplane/plugins/workload/wasip2"
)

// newServer serves a component as a container does, but for its network.
func newServer(tb testing.TB, wasm []byte) (context.Context, *wasihttp.Server) {
	tb.Helper()
	linear := &memories{}
	tb.Cleanup(linear.end)
	ctx := experimental.WithMemoryAllocator(tb.Context(), linear)
	r := wazero.NewRuntimeWithConfig(ctx, engine(0))
	tb.Cleanup(func() { _ = r.Close(ctx) })
	program, modules, err := compiled(ctx, r, wasm)
	if err != nil {
		tb.Fatal(err)
	}
	l, err := link.Link(ctx, r, program, modules, wasip2.Host{})
	if err != nil {
		tb.Fatal(err)
	}
	server, err := wasip2.NewServer(ctx, l, wasip2.Config{Out: io.Discard, Err: io.Discard}, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return ctx, server
}

// BenchmarkRequests is one request after the other, each with its own instance, without a network.
func BenchmarkRequests(b *testing.B) {
	ctx, server := newServer(b, componenttest.HTTPServer(componenttest.HTTPAnswer).Bytes())
	before := processor(b)
	for b.Loop() {
		out := httptest.NewRecorder()
		server.ServeHTTP(out, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody))
		if out.Body.String() != "hell1\n" {
			b.Fatalf("it answered %q", out.Body)
		}
	}
	b.ReportMetric(float64((processor(b)-before).Microseconds())/float64(b.N), "CPU-µs/op")
}

// processor is the processor time of this process.
func processor(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestMemoriesAreEmpty, whatever the one before wrote into them, and of their own size.
func TestMemoriesAreEmpty(t *testing.T) {
	linear := &memories{}
	defer linear.end()
	for _, size := range []uint64{pageSize / 2, pageSize, pageSize + 1, 64 * pageSize} {
		reserved := 64 * pageSize
		for range 3 {
			m := linear.Allocate(0, uint64(reserved))
			b := m.Reallocate(size / 2)
			b = append(b[:0], m.Reallocate(size)...)
			if slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) {
				t.Fatalf("a memory of %d bytes begins with what another one had", size)
			}
			for i := range m.Reallocate(size) {
				m.Reallocate(size)[i] = 0xff
			}
			m.Free()
			m.Free()
		}
	}
	if n := len(linear.spare); n != 1 {
		t.Errorf("%d regions wait, want the one that all had", n)
	}
	other := linear.Allocate(0, pageSize)
	if other.Reallocate(pageSize+1) != nil || len(other.Reallocate(pageSize)) != pageSize {
		t.Error("a memory has another one's bound")
	}
	linear.end()
	other.Free()
	if len(linear.spare) > 0 {
		t.Error("a region waits after the end")
	}
}
