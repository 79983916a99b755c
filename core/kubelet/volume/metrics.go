// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// States of a volume, by upstream's names: what the node's pods want, and what is set up for them.
const (
	wantedState = "desired_state_of_world"
	actualState = "actual_state_of_world"
)

var totalVolumes = prometheus.NewDesc("volume_manager_total_volumes",
	"Volumes that pods of the node want (desired) and that are set up (actual).",
	[]string{"plugin_name", "state"}, nil)

// What is done with volumes, by upstream's names.
const (
	mounting   = "volume_mount"
	unmounting = "volume_unmount"
)

// operations are what was done with volumes, how long that took, and how it ended.
func operations() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "storage_operation_duration_seconds", Help: "How long it took to set volumes up and to take them down.",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}, // upstream's
	}, []string{"volume_plugin", "operation_name", "status", "migrated"})
}

// measured does something with a volume of a kind.
func (m *Manager) measured(kind, operation string, do func() error) error {
	began := time.Now()
	err := do()
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	m.took.WithLabelValues(kind, operation, status, "false").Observe(time.Since(began).Seconds())
	return err
}

// Metrics of the volumes, under upstream's names.
func (m *Manager) Metrics() prometheus.Gatherer { return m.metrics }

// register the metrics. What an earlier run left is counted once: it is what this one found in the directories.
func (m *Manager) register() {
	m.metrics = prometheus.NewRegistry()
	found := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "reconstruct_volume_operations_total",
		Help: "Volumes that the kubelet found when it started, taken over or not.",
	})
	unknown := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "reconstruct_volume_operations_errors_total",
		Help: "Volumes that the kubelet found when it started and could not take over.",
	})
	m.took = operations()
	m.metrics.MustRegister(counts{m}, found, unknown, m.took)         // of names that nobody else has in it
	left, _ := fs.Glob(os.DirFS(m.cfg.RootDir), "pods/*/volumes/*/*") // an error would be that of a bad pattern
	for _, dir := range left {
		found.Inc()
		if m.keeper(path.Base(path.Dir(dir))) == nil {
			unknown.Inc()
		}
	}
}

// kindFor is a volume's kind as upstream's metrics have it: those of CSI are told apart by their drivers.
func kindFor(pl Plugin, r *Request) string {
	switch {
	case r.Volume.CSI != nil:
		return pl.Name() + ":" + r.Volume.CSI.Driver
	case r.Persistent != nil && r.Persistent.Spec.CSI != nil:
		return pl.Name() + ":" + r.Persistent.Spec.CSI.Driver
	}
	return pl.Name()
}

// kindOf is the kind of a pod's volume in its directory: as it was known when it was set up, or of its plugin alone.
func (m *Manager) kindOf(uid types.UID, dir string, pl Plugin) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if pv := m.pods[uid]; pv != nil && pv.places[dir] != "" {
		return pv.places[dir]
	}
	return pl.Name()
}

// counts are the volumes at the time when somebody asks.
type counts struct{ *Manager }

// Describe implements prometheus.Collector.
func (counts) Describe(ch chan<- *prometheus.Desc) { ch <- totalVolumes }

// Collect implements prometheus.Collector.
func (c counts) Collect(ch chan<- prometheus.Metric) {
	for of, n := range c.now() {
		ch <- prometheus.MustNewConstMetric(totalVolumes, prometheus.GaugeValue, float64(n), of.kind, of.state)
	}
}

type counted struct{ kind, state string }

// now counts each volume once for each pod. One is wanted from when it is known what it is until its pod is taken down, and
// is there from when it is set up until nothing of it is left.
func (c counts) now() map[counted]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[counted]int{}
	for _, pv := range c.pods {
		for name, kind := range pv.kinds {
			if !pv.gone {
				out[counted{kind, wantedState}]++
			}
			if _, ok := pv.mounted[name]; ok {
				out[counted{kind, actualState}]++
			}
		}
	}
	return out
}
