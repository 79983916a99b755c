// SPDX-License-Identifier: Apache-2.0

// Package reloads counts how often a server has taken on a changed file that says who may come in, and who may do what.
// Names and labels are upstream's; the process serves them.
package reloads

import (
	"crypto/sha256"
	"fmt"
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// The configurations of one server.
var (
	Authentication = of("authentication")
	Authorization  = of("authorization")
)

// Configuration is a file that is followed.
type Configuration struct {
	total *metrics.CounterVec
	last  *metrics.GaugeVec

	register func()
}

func of(what string) *Configuration {
	subsystem, labels := what+"_config_controller", []string{"status", "apiserver_id_hash"}
	c := &Configuration{
		total: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: "apiserver", Subsystem: subsystem, Name: "automatic_reloads_total", StabilityLevel: metrics.BETA,
			Help: "Times that a changed " + what + " configuration was read, by whether it was taken on.",
		}, labels),
		last: metrics.NewGaugeVec(&metrics.GaugeOpts{
			Namespace: "apiserver", Subsystem: subsystem, Name: "automatic_reload_last_timestamp_seconds", StabilityLevel: metrics.BETA,
			Help: "When a changed " + what + " configuration was last read, as seconds since 1970, by whether it was taken on.",
		}, labels),
	}
	c.register = sync.OnceFunc(func() { legacyregistry.MustRegister(c.total, c.last) })
	return c
}

// Ended counts a reload by the server with this identity.
func (c *Configuration) Ended(server string, err error) {
	c.register()
	status := "success"
	if err != nil {
		status = "failure"
	}
	if server != "" {
		server = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(server)))
	}
	c.total.WithLabelValues(status, server).Inc()
	c.last.WithLabelValues(status, server).SetToCurrentTime()
}
