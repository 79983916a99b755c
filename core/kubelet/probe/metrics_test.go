// SPDX-License-Identifier: Apache-2.0

package probe_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/probe"
)

// Probes are counted by their result, and forgotten with their pod.
func TestProbesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{ok: func(_ pod.Probe, n int) bool { return n > 2 }, asked: map[pod.Probe][]time.Duration{}, begun: time.Now()}
		m := probe.NewManager(a, func(types.UID, pod.Probed) {}, func(*corev1.Pod, *corev1.Container, string, string, string) {},
			slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = m.Run(ctx) }()
		p := &corev1.Pod{}
		p.Name, p.Namespace, p.UID = "web", "ns", "uid"
		m.Set(p, "1.2.3.4",
			[]pod.Target{{Spec: &corev1.Container{Name: "app", ReadinessProbe: spec(0, 1, 1, 3)}, ID: "c1", Started: time.Now(), StartupDone: true}})
		time.Sleep(4500 * time.Millisecond)
		synctest.Wait()
		const want = `# HELP prober_probe_total Probes of containers, by kind of probe and result.
# TYPE prober_probe_total counter
prober_probe_total{container="app",namespace="ns",pod="web",pod_uid="uid",probe_type="Readiness",result="failed"} 2
prober_probe_total{container="app",namespace="ns",pod="web",pod_uid="uid",probe_type="Readiness",result="successful"} 3
`
		if err := testutil.GatherAndCompare(m.Metrics(), strings.NewReader(want), "prober_probe_total"); err != nil {
			t.Error(err)
		}
		if n, err := testutil.GatherAndCount(m.Metrics(), "prober_probe_duration_seconds"); err != nil || n != 1 {
			t.Errorf("%d durations, %v", n, err)
		}
		m.Forget(p)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n, err := testutil.GatherAndCount(m.Metrics()); err != nil || n != 0 {
			t.Errorf("%d metrics of a pod that is gone, %v", n, err)
		}
		cancel()
		<-done
	})
}
