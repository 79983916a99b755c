// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/wasmplane/wasmplane/plugins/fuel"
	"github.com/wasmplane/wasmplane/plugins/host"
)

// TestNoStretchIsLong: with nothing in the counter, a guest comes to a safe point
// before it has run more than the rewriter's own bound and one bulk operation. Together
// with the largest slice that the host hands out this is how long a guest can keep the process's
// collector and everybody else waiting: it is counted here, not timed.
func TestNoStretchIsLong(t *testing.T) {
	const (
		block    = 4096 + 64       // the longest unchecked way, and a piece of it that may be paid for ahead
		entries  = 1 << 18         // most entries of a table: an operation on them is one stretch
		bulk     = 65536/16 + 1024 // a chunk of a bulk operation
		attempts = 300             // safe points that are looked at
	)
	if host.LargestSlice > 1<<16 {
		t.Errorf("a slice of %d units is more than 65536, some 60 us of ordinary code", host.LargestSlice)
	}
	for i := range hostileGuests {
		g := &hostileGuests[i]
		if g.want != host.Fuel || g.imports != "" {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			limit := int64(block + bulk)
			if tables[g.name] {
				limit += entries
			}
			if strings.Contains(g.source, "(memory.grow (i32.const 500))") {
				limit += 500 * 4096 // is paid for: the guest does not run while pages are made
			}
			longest, points := stretches(t, assemble(t, g.module()), attempts)
			if points < attempts {
				t.Errorf("it came to %d safe points only", points)
			}
			if longest > limit {
				t.Errorf("it ran for %d units between two safe points, at most %d are allowed", longest, limit)
			}
		})
	}
}

// tables are the shapes that work on tables, which are no larger than limits allow.
var tables = map[string]bool{"table.grow, over and over": true, "table.fill, over and over": true, "table.copy, over and over": true}

var errEnough = errors.New("enough")

// stretches runs a guest with one unit of fuel at a time, and says how far it
// overdrew at the most before it came to a safe point.
func stretches(t *testing.T, wasm []byte, attempts int) (longest int64, points int) {
	t.Helper()
	ctx := context.Background()
	metered, err := fuel.Rewrite(wasm, fuel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler())
	defer r.Close(ctx)
	_, err = r.NewHostModuleBuilder(fuel.ImportModule).NewFunctionBuilder().WithFunc(func(_ context.Context, m api.Module, _ uint32) {
		counter, _ := m.ExportedGlobal(fuel.ExportCounter).(api.MutableGlobal)
		longest = max(longest, 1-int64(counter.Get()))
		if points++; points >= attempts {
			panic(errEnough)
		}
		counter.Set(1)
	}).Export(fuel.ImportYield).Instantiate(ctx)
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.InstantiateWithConfig(ctx, metered, wazero.NewModuleConfig().WithStartFunctions("_initialize"))
	if err == nil {
		_, err = m.ExportedFunction("call").Call(ctx, 1, 0, 0)
	}
	if !errors.Is(err, errEnough) {
		t.Fatalf("it ended with %v", err)
	}
	return longest, points
}
