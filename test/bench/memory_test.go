// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"testing"
	"time"
)

// BenchmarkIdle is the memory of a process that has nothing to do.
func BenchmarkIdle(b *testing.B) {
	for b.Loop() {
		measureIdle(b, demoPlugins(b), 30*time.Second).publish(b)
	}
}

// measureIdle starts clusters, leaves them alone for a while, and looks at their
// processes. containerd is a process of its own, and not counted.
func measureIdle(tb testing.TB, with plugins, settle time.Duration) *report {
	r := newReport("Memory of the idle process, containerd apart", "", "RSS", "anonymous", "file", "peak RSS", "CPU while idle", "aim (RSS)")
	for _, way := range []struct{ name, unit, nodes, config string }{
		{"real node", "real", "real", ""},
		{"real node, " + with.what, "real-plugins", "real", with.config},
		{"3 simulated nodes", "simulated-3", "simulated:3", ""},
	} {
		func() {
			c := newCluster(tb, "--nodes", way.nodes)
			defer c.purge()
			if way.config != "" {
				c.writeConfig(way.config)
			}
			c.start()
			awaitNodeReady(tb, c.kube())
			pause(tb.Context(), settle/3)
			c.profile(func() {
				before, _ := cpuOf(c.pid())
				began := time.Now()
				pause(tb.Context(), settle*2/3)
				m, err := memoryOf(c.pid())
				if err != nil {
					tb.Fatal(err)
				}
				after, err := cpuOf(c.pid())
				if err != nil {
					tb.Fatal(err)
				}
				r.row(way.name, mib(m.rss), mib(m.anon), mib(m.file), mib(m.peak), percent(after-before, time.Since(began)), "150 MiB")
				r.metric("MiB/rss-"+way.unit, float64(m.rss)/(1<<20))
				r.metric("MiB/anon-"+way.unit, float64(m.anon)/(1<<20))
			})
		}()
	}
	r.note("file: pages of the binary itself and of etcd's database, which the kernel takes back when it needs memory.")
	return r
}
