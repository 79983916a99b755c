// SPDX-License-Identifier: Apache-2.0

package resourcemetrics

import (
	"testing"
	"time"
)

func TestRate(t *testing.T) {
	begin := time.Unix(1700000000, 0)
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	p := func(cpu float64, seconds int, started time.Time) *point {
		return &point{cpu: cpu, memory: 10, at: at(seconds), started: started, has: hasCPU | hasMemory}
	}
	unknown := time.Time{}
	for name, c := range map[string]struct {
		last, earlier *point
		cpu           float64
		window        time.Duration
		none          bool
	}{
		"two points":                      {p(25, 20, unknown), p(10, 10, unknown), 1.5, 10 * time.Second, false},
		"nothing used":                    {p(10, 20, unknown), p(10, 10, unknown), 0, 10 * time.Second, false},
		"the same answer twice":           {p(10, 10, unknown), p(10, 10, unknown), 0, 0, true},
		"time ran backwards":              {p(20, 10, unknown), p(10, 20, unknown), 0, 0, true},
		"one point":                       {p(10, 10, unknown), nil, 0, 0, true},
		"one point, started a moment ago": {p(10, 20, begin), nil, 0.5, 20 * time.Second, false},
		"one point, started just now":     {p(10, 9, begin), nil, 0, 0, true},
		"one point, started long ago":     {p(10, 120, begin), nil, 0, 0, true},
		"started in the future":           {p(10, 10, at(100)), nil, 0, 0, true},
		"restarted between":               {p(12, 60, at(40)), p(10, 30, begin), 0.6, 20 * time.Second, false},
		"restarted, nobody says when":     {p(5, 60, unknown), p(10, 30, unknown), 0, 0, true},
		"no memory":                       {&point{cpu: 1, at: at(10), has: hasCPU}, p(0, 1, unknown), 0, 0, true},
		"the earlier one was of no worth": {p(10, 20, begin), &point{memory: 3, has: hasMemory}, 0.5, 20 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			u, ok := rate(c.last, c.earlier)
			if ok == c.none {
				t.Fatalf("known: %t", ok)
			}
			if ok && (u.cpu != c.cpu || u.window != c.window || u.memory != 10) {
				t.Errorf("usage: %+v, want %g cores in %s", u, c.cpu, c.window)
			}
		})
	}
}
