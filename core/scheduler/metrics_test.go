// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"bufio"
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// upstreams is what upstream promises of its scheduler's metrics: type and labels by name.
func upstreams(t *testing.T) map[string][]string {
	t.Helper()
	f, err := os.Open("../apiserver/testdata/upstream-metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	out := map[string][]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if parts := strings.Fields(lines.Text()); len(parts) == 4 && strings.HasPrefix(parts[0], "scheduler_") {
			out[parts[0]] = parts[2:]
		}
	}
	return out
}

// One pod is bound, one fits nowhere, one may not be tried: the metrics tell them
// apart, under upstream's names and labels.
func TestMetricsTellWhatBecameOfPods(t *testing.T) {
	c := start(t)
	c.node("a", "1")
	c.create(pod("small", "100m"))
	c.await("small", bound)
	c.create(pod("large", "8"))
	c.await("large", refused)
	gated := pod("gated", "100m")
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "later"}}
	gated.Status.Phase = corev1.PodPending
	c.create(gated)

	want := map[string]float64{
		"scheduler_schedule_attempts_total default-scheduler scheduled":                            1,
		"scheduler_schedule_attempts_total default-scheduler unschedulable":                        1,
		"scheduler_scheduling_attempt_duration_seconds default-scheduler scheduled":                1,
		"scheduler_pod_scheduling_attempts":                                                        1,
		"scheduler_pod_scheduling_sli_duration_seconds 1":                                          1,
		"scheduler_pending_pods gated":                                                             1,
		"scheduler_pending_pods unschedulable":                                                     1,
		"scheduler_unschedulable_pods NodeResourcesFit default-scheduler":                          1,
		"scheduler_unschedulable_pods SchedulingGates default-scheduler":                           1,
		"scheduler_pending_pods active":                                                            0,
		"scheduler_queue_incoming_pods_total PodAdd active":                                        2,
		"scheduler_plugin_evaluation_total Filter NodeResourcesFit default-scheduler":              2,
		"scheduler_framework_extension_point_duration_seconds Bind default-scheduler Success":      1,
		"scheduler_framework_extension_point_duration_seconds PreFilter default-scheduler Success": 2,
		"scheduler_preemption_attempts_total":                                                      1,
		"scheduler_cache_size nodes":                                                               1,
	}
	var got map[string]float64
	if err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		got = gathered(t, c)
		for name, n := range want {
			if v, ok := got[name]; !ok || v != n {
				return false, nil
			}
		}
		return true, nil
	}); err != nil {
		for name, n := range want {
			if v, ok := got[name]; !ok || v != n {
				t.Errorf("%s is %v (served: %v), expected %v", name, v, ok, n)
			}
		}
	}
}

func TestMetricsHaveUpstreamsTypesAndLabels(t *testing.T) {
	c := start(t)
	c.node("a", "1")
	c.create(pod("small", "100m"))
	c.await("small", bound)
	promised, seen := upstreams(t), 0
	families, err := c.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		want, ok := promised[f.GetName()]
		if !ok {
			continue
		}
		seen++
		labels := map[string]bool{}
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels[l.GetName()] = true
		}
		have := strings.Join(slices.Sorted(maps.Keys(labels)), ",")
		if have == "" {
			have = "-"
		}
		if kind := strings.ToLower(f.GetType().String()); kind != want[0] || have != want[1] {
			t.Errorf("%s is a %s with labels %s, upstream's a %s with %s", f.GetName(), kind, have, want[0], want[1])
		}
	}
	if seen < 8 {
		t.Errorf("only %d of upstream's metrics are there after a pod was bound", seen)
	}
}

// gathered are values by name and label values; of histograms, how many observations.
func gathered(t *testing.T, c *cluster) map[string]float64 {
	t.Helper()
	families, err := c.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			out[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}
