// SPDX-License-Identifier: Apache-2.0

package compiler_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/fuel"
	"github.com/wasmplane/wasmplane/plugins/host/compiler"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// tenant is what a tenant's module may use here.
var tenant = compiler.Limits{Memory: 256 << 20, CPU: 5 * time.Second}

func newChild(t *testing.T, l compiler.Limits) *compiler.Child {
	t.Helper()
	c, err := compiler.NewChild(l)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestMutatedModulesAreBounded: good modules with a few bytes changed, the same ones in each run.
func TestMutatedModulesAreBounded(t *testing.T) {
	good := plugintest.Module(t, "no-latest")
	r := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		bad := bytes.Clone(good)
		for range 1 + r.IntN(4) {
			bad[8+r.IntN(len(bad)-8)] = byte(r.UintN(256))
		}
		a, used, err := newChild(t, tenant).Measure(t.Context(), bad, compiler.Spec{})
		if (a == nil) == (err == nil) || used.CPU > tenant.CPU+2*time.Second {
			t.Errorf("%v, %s of processor time", err, used.CPU)
		}
	}
}

// TestRealModulesPass within what a tenant has.
func TestRealModulesPass(t *testing.T) {
	for _, name := range []string{"business-hours", "pod-security", "no-latest"} {
		wasm := plugintest.Module(t, name)
		for _, limits := range []compiler.Limits{{Memory: tenant.Memory, CPU: 30 * time.Second}, {}} {
			a, used, err := newChild(t, limits).Measure(t.Context(), wasm, compiler.Spec{Fuel: fuel.Options{ExportGlobals: true}})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			t.Logf("%s: %d bytes, %d bytes of code, %s of processor time, %d MiB", name, len(wasm), len(a.Code), used.CPU, used.Memory>>20)
		}
	}
}
