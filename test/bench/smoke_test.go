// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"testing"
	"time"
)

// TestBenchSmoke runs every measurement once, small, and asserts nothing but that
// it gives figures.
func TestBenchSmoke(t *testing.T) {
	// One small plugin: compiling Go's runtime takes seconds.
	small := plugins{"1 plugin", pluginConfig([]way{{namespace: "default", validate: true}})}
	for name, measure := range map[string]func(t *testing.T) *report{
		"pods":        func(t *testing.T) *report { return measurePods(t, 1, 1, 2) },
		"start":       func(t *testing.T) *report { return measureStart(t, small, 1, 50) },
		"crash":       func(t *testing.T) *report { return measureCrash(t, 100, 2, 1) },
		"idle":        func(t *testing.T) *report { return measureIdle(t, small, time.Second) },
		"simulated":   func(t *testing.T) *report { return measureSimulated(t, 5, 20, 100*time.Millisecond) },
		"lent":        func(t *testing.T) *report { return measureLent(t, 2, 5, 1) },
		"loops":       func(t *testing.T) *report { return measureLoops(t, 20, 5, 2) },
		"nodes":       func(t *testing.T) *report { return measureNodes(t, 5, 100*time.Millisecond) },
		"plugins":     func(t *testing.T) *report { return measurePlugins(t, pluginWays[:2], 10) },
		"reconcilers": func(t *testing.T) *report { return measureReconcilers(t, 3, time.Second, 2) },
		"hostile":     func(t *testing.T) *report { return measureHostile(t, 0.01, 10) },
		"trace":       func(t *testing.T) *report { return measureTrace(t, 100) },
		"wasm":        func(t *testing.T) *report { return measureWasm(t, 1, 3) },
		"http":        func(t *testing.T) *report { return measureWasmHTTP(t, 1, 500*time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			r := measure(t)
			t.Log(r)
			if len(r.rows) < 2 {
				t.Error("no figures")
			}
			for unit, v := range r.metrics {
				if v <= 0 {
					t.Errorf("%s is %v", unit, v)
				}
			}
		})
	}
}
