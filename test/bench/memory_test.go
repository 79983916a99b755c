// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"net"
	"os/exec"
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
			c.profile(func() { r.idle(tb, settle*2/3, idle{way.name, way.unit, c.pid()}) })
		}()
	}
	measureIdleWorker(tb, r, settle)
	r.note("file: pages of the binary itself and of etcd's database, which the kernel takes back when it needs memory.")
	return r
}

// measureIdleWorker is of a server without pods, and a worker that has joined it, on this machine beside it.
func measureIdleWorker(tb testing.TB, r *report, settle time.Duration) {
	tb.Helper()
	server := newCluster(tb, "--nodes", "none")
	defer server.purge()
	_, port, err := net.SplitHostPort(server.Listen)
	if err != nil {
		tb.Fatal(err)
	}
	server.flags = append(server.flags, "--listen", ":"+port) // for workers, too
	server.start()
	worker := newCluster(tb)
	defer worker.purge()
	token, err := exec.Command(built.Binary, "token", "create", "-q", "--data-dir", server.Data).Output()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(built.Binary, "join", "127.0.0.1:"+port, "--token-file", "-", "--data-dir", worker.Data, "--cluster-name", worker.Name)
	cmd.Env, cmd.Dir, cmd.Stdin = worker.Env, worker.Dir, bytes.NewReader(token)
	p, err := worker.Start("up", cmd)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := p.AwaitLine(isReady); err != nil {
		tb.Fatal(err)
	}
	awaitNodeReady(tb, server.kube())
	pause(tb.Context(), settle/3)
	r.idle(tb, settle*2/3, idle{"server of one worker, without pods", "server", server.pid()}, idle{"worker", "worker", worker.pid()})
}

// idle is a process that has nothing to do.
type idle struct {
	name, unit string
	pid        int
}

// idle leaves processes alone for a while, and has a row for each.
func (r *report) idle(tb testing.TB, settle time.Duration, all ...idle) {
	tb.Helper()
	before := make([]time.Duration, len(all))
	for i, one := range all {
		before[i], _ = cpuOf(one.pid)
	}
	began := time.Now()
	pause(tb.Context(), settle)
	took := time.Since(began)
	for i, one := range all {
		m, err := memoryOf(one.pid)
		if err != nil {
			tb.Fatal(err)
		}
		after, err := cpuOf(one.pid)
		if err != nil {
			tb.Fatal(err)
		}
		r.row(one.name, mib(m.rss), mib(m.anon), mib(m.file), mib(m.peak), percent(after-before[i], took), "150 MiB")
		r.metric("MiB/rss-"+one.unit, float64(m.rss)/(1<<20))
		r.metric("MiB/anon-"+one.unit, float64(m.anon)/(1<<20))
	}
}
