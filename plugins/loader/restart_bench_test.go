package loader_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// BenchmarkRestart loads twenty plugins, compiled before, as a server that comes up
// again does: small ones, and ones in Go.
func BenchmarkRestart(b *testing.B) {
	root := plugintest.Root(b)
	plugintest.Example(b, "no-privileged")
	plugintest.Example(b, "add-label")
	for _, c := range []struct{ kind, module, more string }{
		{"small", "no-privileged", ""}, {"go", "add-label", ", settings: {label: team, value: x}"},
	} {
		b.Run(c.kind, func(b *testing.B) {
			var text strings.Builder
			text.WriteString("plugins:\n")
			for i := range 20 {
				fmt.Fprintf(&text, "  - {name: p%d, source: \"file:build/wasm/%s.wasm\"%s}\n", i, c.module, c.more)
			}
			all, cache := entries(b, text.String()), filepath.Join(b.TempDir(), "cache")
			load := func() (wall, cpu time.Duration) {
				start, used := time.Now(), processTime(b)
				l, err := loader.New(b.Context(), loader.Config{Dir: root, CacheDir: cache, Entries: all})
				if err == nil {
					err = l.Load(b.Context())
				}
				wall, cpu = time.Since(start), processTime(b)-used
				if err != nil {
					b.Fatal(err)
				}
				if err := l.Close(b.Context()); err != nil {
					b.Fatal(err)
				}
				return wall, cpu
			}
			load() // fills the cache
			var wall, cpu time.Duration
			for b.Loop() {
				w, c := load()
				wall, cpu = wall+w, cpu+c
			}
			b.ReportMetric(float64(wall.Microseconds())/float64(b.N)/20/1000, "ms/plugin")
			b.ReportMetric(float64(cpu.Microseconds())/float64(b.N)/20/1000, "cpu-ms/plugin")
		})
	}
}

// processTime is the processor time of the whole process.
func processTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// fewestPods is least-pods, native.
type fewestPods struct{}

func (fewestPods) judge(s *framework.Snapshot, out []framework.Verdict) {
	for i, n := range s.Nodes {
		out[i] = framework.Verdict{Score: max(0, 100-100*int64(len(n.Pods))/max(1, n.Allocatable.Pods))}
	}
}

// BenchmarkNodes is one pod over 5000 nodes: native, by a table that stays in the
// guest, and with a call for each node.
func BenchmarkNodes(b *testing.B) {
	var nodes []*framework.NodeInfo
	for i := range 5000 {
		nodes = append(nodes, node(fmt.Sprint("n", i), map[string]string{"disk": "ssd", "zone": "a", "dedicated": "blue"}, i%100, int64(i+1)))
	}
	s, p := snapshotOf(1, nodes...), &framework.PodInfo{Pod: pod("a:1", map[string]string{"dedicated": "blue"})}
	b.Run("native", func(b *testing.B) {
		defer cpuTime(b)()
		out := make([]framework.Verdict, len(nodes))
		for b.Loop() {
			fewestPods{}.judge(s, out)
		}
	})
	for _, name := range []string{"least-pods", "prefer-label"} {
		b.Run("table/"+name, func(b *testing.B) {
			judge := loaded(b, name, map[string]string{"prefer-label": "settings: {label: disk, value: ssd}"}[name]).SchedulerPlugins()[0].Plugin.(framework.Judge)
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
	b.Run("each/dedicated-nodes", func(b *testing.B) {
		plugin := loaded(b, "dedicated-nodes").SchedulerPlugins()[0].Plugin
		filter, score := plugin.(framework.Filter), plugin.(framework.Score)
		state := framework.NewState()
		defer cpuTime(b)()
		for b.Loop() {
			for _, n := range nodes {
				if st := filter.Filter(b.Context(), state, p, n); !st.IsSuccess() {
					b.Fatal(st)
				}
				if _, st := score.Score(b.Context(), state, p, n); !st.IsSuccess() {
					b.Fatal(st)
				}
			}
		}
	})
}
