// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_*
	_ "k8s.io/component-base/metrics/prometheus/version"    // kubernetes_build_info

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/storagekey"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/store/measured"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// measure puts upstream's metrics of etcd's client before the store.
func (s *server) measure(contract *api.Contract) error {
	st, err := measured.New(s.store, storagekey.Resources(contract), s.metrics)
	if err != nil {
		return err
	}
	s.store = st
	return nil
}

// measureCache registers what is known of the cache, the objects and the store.
func (s *server) measureCache(contract *api.Contract) (err error) {
	for _, c := range []prometheus.Collector{registry.NewCounts(s.registries), watchcache.NewCollector(s.cache, storagekey.Resources(contract))} {
		if err := s.metrics.Register(c); err != nil {
			return fmt.Errorf("register the metrics of what is stored: %w", err)
		}
	}
	s.size, err = measured.NewSize(s.etcd.Size, s.metrics)
	return err
}
