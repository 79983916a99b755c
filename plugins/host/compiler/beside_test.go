// SPDX-License-Identifier: Apache-2.0

package compiler_test

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/host/compiler"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// BenchmarkBesideHostileModules tells what others notice while a tenant has one hostile module
// after the other loaded: how long another tenant's and an operator's load take (tenant-ms,
// operator-ms), the 99th percentile of calls of a plugin in force (p99-ms), and what one of
// the modules made its compiler use (cpu-ms, MiB). `make bench-hostile` prints it with the load.
func BenchmarkBesideHostileModules(b *testing.B) {
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		b.Logf("load at the beginning: %s", load)
	}
	canned := plugintest.Canned(b)
	b.Run("nothing", func(b *testing.B) { beside(b, canned, nil) })
	shapes := compiler.Shapes()
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) { beside(b, canned, shapes[name](10_000)) })
	}
}

// another is the module under another digest: nothing of it is remembered.
func another(module []byte, n uint64) []byte {
	return append(slices.Clip(module), binary.LittleEndian.AppendUint64([]byte{0, 10, 1, 'n'}, n)...)
}

func beside(b *testing.B, canned, hostile []byte) {
	h, err := host.New(b.Context(), host.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := h.Close(); err != nil {
			b.Error(err)
		}
	}()
	compile := func(ctx context.Context, module []byte, tenant string) (*host.Module, error) {
		return h.Compile(ctx, module, host.Options{Name: "p", Tenant: tenant})
	}
	inForce, err := compile(b.Context(), another(canned, 1<<40), "")
	if err != nil {
		b.Fatal(err)
	}
	defer inForce.Close()

	ctx, cancel := context.WithCancel(b.Context())
	var all sync.WaitGroup
	if hostile != nil {
		for n := range uint64(4) { // as many as may wait, and one that is compiled
			all.Go(func() {
				for i := n << 20; ctx.Err() == nil; i++ {
					if m, err := compile(ctx, another(hostile, i), "hostile"); err == nil {
						err = m.Close()
						if err != nil {
							b.Error(err)
						}
					}
				}
			})
		}
	}
	var calls []time.Duration
	all.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond) // as requests come
		defer tick.Stop()
		for ctx.Err() == nil {
			began := <-tick.C
			if _, _, err := inForce.Call(ctx, 1, []byte("{}")); err != nil && ctx.Err() == nil {
				var refused *host.GuestError
				if !errors.As(err, &refused) {
					b.Error(err)
					return
				}
			}
			calls = append(calls, time.Since(began))
		}
	})
	waits := map[string]time.Duration{}
	for i := range uint64(b.N) * 3 {
		for _, who := range []string{"tenant", "operator"} {
			of := who
			if who == "operator" {
				of = ""
			}
			began := time.Now()
			m, err := compile(b.Context(), another(canned, i<<8|uint64(len(who))), of)
			waits[who] = max(waits[who], time.Since(began))
			if err != nil {
				b.Error(err)
				continue
			}
			if err := m.Close(); err != nil {
				b.Error(err)
			}
		}
	}
	cancel()
	all.Wait()
	slices.Sort(calls)
	b.ReportMetric(float64(waits["tenant"].Milliseconds()), "tenant-ms")
	b.ReportMetric(float64(waits["operator"].Milliseconds()), "operator-ms")
	b.ReportMetric(float64(calls[len(calls)*99/100].Microseconds())/1000, "p99-ms")
	if hostile == nil {
		return
	}
	child, err := compiler.NewChild(compiler.Limits{Memory: 256 << 20, CPU: 5 * time.Second}) // a tenant's
	if err != nil {
		b.Fatal(err)
	}
	_, used, _ := child.Measure(b.Context(), hostile, compiler.Spec{})
	b.ReportMetric(float64(used.CPU.Milliseconds()), "cpu-ms")
	b.ReportMetric(float64(used.Memory>>20), "MiB")
}
