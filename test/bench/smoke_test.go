package bench

import (
	"strings"
	"testing"
	"time"
)

// TestBenchSmoke runs every measurement once, small, and asserts nothing but that
// it gives figures.
func TestBenchSmoke(t *testing.T) {
	for name, measure := range map[string]func(t *testing.T) *report{
		"pods":      func(t *testing.T) *report { return measurePods(t, 1, 1, 2) },
		"start":     func(t *testing.T) *report { return measureStart(t, 1, 50) },
		"idle":      func(t *testing.T) *report { return measureIdle(t, time.Second) },
		"simulated": func(t *testing.T) *report { return measureSimulated(t, 5, 20, 100*time.Millisecond) },
		"plugins":   func(t *testing.T) *report { return measurePlugins(t, 10) },
		"trace":     func(t *testing.T) *report { return measureTrace(t, 100) },
	} {
		t.Run(name, func(t *testing.T) {
			r := measure(t)
			t.Log(r)
			if len(r.rows) < 2 {
				t.Error("no figures")
			}
			for unit, v := range r.metrics {
				if v <= 0 && !strings.HasPrefix(unit, "us/") {
					t.Errorf("%s is %v", unit, v)
				}
			}
		})
	}
}
