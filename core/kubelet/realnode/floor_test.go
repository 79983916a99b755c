// SPDX-License-Identifier: Apache-2.0

package realnode_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/kubelet/realnode/nodetest"
)

// BenchmarkFloor is the floor under every pod on this machine.
func BenchmarkFloor(b *testing.B) {
	node := nodetest.Start(b)
	for _, atOnce := range []int{1, 10} {
		b.Run(fmt.Sprintf("%d-at-once", atOnce), func(b *testing.B) {
			for b.Loop() {
				r, err := nodetest.Floor(b.Context(), node.Engine(), nodetest.FloorConfig{
					Image: nodetest.Image, Pods: 10, AtOnce: atOnce,
					CgroupParent: node.Names().PodsCgroup(), LogDir: node.Config.Dir + "/floor",
				})
				if err != nil {
					b.Fatal(err)
				}
				for what, d := range map[string]time.Duration{
					"ms/pod-median": nodetest.Median(r.Running), "ms/sandbox": nodetest.Median(r.Sandbox),
					"ms/create": nodetest.Median(r.Create), "ms/start": nodetest.Median(r.Start), "ms/wall": r.Wall,
				} {
					b.ReportMetric(float64(d.Microseconds())/1000, what)
				}
			}
		})
	}
}
