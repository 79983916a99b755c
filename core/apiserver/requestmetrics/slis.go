// SPDX-License-Identifier: Apache-2.0

package requestmetrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// SLIs are the metrics of whether the server is well and since when it runs, of all that g has. They are few, so that
// they can be read often: upstream serves them at a path of their own.
func SLIs(g prometheus.Gatherer) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := g.Gather() // what could be read, though another could not
		return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool {
			switch f.GetName() {
			case "kubernetes_healthcheck", "kubernetes_healthchecks_total", "process_start_time_seconds":
				return false
			}
			return true
		}), err
	})
}
