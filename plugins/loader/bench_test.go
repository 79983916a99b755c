// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"fmt"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// cpuTime reports the processor time of an iteration besides its wall time: that
// is what can be believed on a busy machine.
func cpuTime(b *testing.B) func() {
	b.Helper()
	runtime.LockOSThread()
	now := func() int64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	start := now()
	return func() {
		b.ReportMetric(float64(now()-start)/float64(b.N), "cpu-ns/op")
		runtime.UnlockOSThread()
	}
}

// BenchmarkJudge is one pod over 5000 nodes, one of which has changed.
func BenchmarkJudge(b *testing.B) {
	for _, name := range []string{"least-pods", "prefer-label"} {
		b.Run(name, func(b *testing.B) {
			judge := loaded(b, name,
				map[string]string{"prefer-label": "settings: {label: disk, value: ssd}"}[name]).SchedulerPlugins()[0].Plugin.(framework.Judge)
			var nodes []*framework.NodeInfo
			for i := range 5000 {
				nodes = append(nodes, node(fmt.Sprint("n", i), map[string]string{"disk": "ssd", "zone": "a"}, i%100, int64(i+1)))
			}
			s, p := snapshotOf(1, nodes...), &framework.PodInfo{Pod: pod("a:1", nil)}
			if _, st := judge.Judge(b.Context(), p, s); !st.IsSuccess() {
				b.Fatal(st)
			}
			b.ReportAllocs()
			defer cpuTime(b)()
			for b.Loop() {
				s.Generation++
				nodes[7].Generation = s.Generation
				if _, st := judge.Judge(b.Context(), p, s); !st.IsSuccess() {
					b.Fatal(st)
				}
			}
		})
	}
}
