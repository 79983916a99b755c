// SPDX-License-Identifier: Apache-2.0

// Package zpages serves what each component of upstream serves beside /metrics, in upstream's words and formats: /statusz
// (what it is, since when it runs, what it serves), /flagz (with which flags it was started) and /metrics/slis (how its
// checks of health went). Who may read them is decided by whoever mounts them.
package zpages

import (
	"net/http"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/component-base/metrics"
)

const (
	// StatusPath is where a component says what it is.
	StatusPath = statusz.DefaultStatuszPath
	// FlagsPath is where a component says with which flags it was started.
	FlagsPath = flagz.DefaultFlagzPath
	// SLIPath is where a component says how its checks of health went.
	SLIPath = "/metrics/slis"
)

// Flags of a process, by their names. One whose value is a secret has no place here.
type Flags map[string]string

// GetFlagz implements upstream's flagz.Reader.
func (f Flags) GetFlagz() map[string]string { return f }

// mounted is what upstream's functions mount.
type mounted struct{ handler http.Handler }

func (m *mounted) Handle(_ string, h http.Handler) { m.handler = h }

// Status serves StatusPath of a component, as plain text, or as JSON, YAML or CBOR of the kind Statusz
// (config.k8s.io/v1beta1 and v1alpha1) for whoever accepts that. The first parts of paths are listed.
func Status(component string, paths []string) http.Handler {
	var m mounted
	statusz.Install(&m, component, statusz.NewRegistry(compatibility.DefaultBuildEffectiveVersion(),
		statusz.WithListedPaths(append(slices.Clone(paths), StatusPath))))
	return m.handler
}

// FlagsPage serves FlagsPath of a component, in the formats of Status.
func FlagsPage(component string, flags Flags) http.Handler {
	var m mounted
	flagz.Install(&m, component, flags)
	return m.handler
}

// Health counts how checks of health went, of one server. It implements prometheus.Gatherer for its /metrics.
type Health struct {
	registry metrics.KubeRegistry
	last     *metrics.GaugeVec
	all      *metrics.CounterVec
}

// NewHealth has counted nothing yet.
func NewHealth() *Health {
	h := &Health{
		registry: metrics.NewKubeRegistry(),
		last: metrics.NewGaugeVec(&metrics.GaugeOpts{
			Namespace: "kubernetes", Name: "healthcheck", Help: "This metric records the result of a single healthcheck.",
			StabilityLevel: metrics.STABLE,
		}, []string{"name", "type"}),
		all: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: "kubernetes", Name: "healthchecks_total", Help: "This metric records the results of all healthcheck.",
			StabilityLevel: metrics.STABLE,
		}, []string{"name", "type", "status"}),
	}
	h.registry.MustRegister(h.last, h.all) // of names that nobody else has in it
	// Without it, since when the process runs is not known, and all else is.
	_ = metrics.RegisterProcessStartTime(h.registry.Register)
	return h
}

// Checked counts one check, as part of a probe (livez, readyz or healthz).
func (h *Health) Checked(check, probe string, err error) {
	status, value := "success", 1.0
	if err != nil {
		status, value = "error", 0
	}
	h.last.WithLabelValues(check, probe).Set(value)
	h.all.WithLabelValues(check, probe, status).Inc()
}

// Gather are the counts alone: since when the process runs is one of its own metrics.
func (h *Health) Gather() ([]*dto.MetricFamily, error) {
	all, err := h.registry.Gather()
	return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return !strings.HasPrefix(f.GetName(), "kubernetes_health") }), err
}

// Handler serves SLIPath. DELETE begins to count anew.
func (h *Health) Handler() http.Handler {
	return metrics.HandlerWithReset(h.registry, metrics.HandlerOpts{})
}
