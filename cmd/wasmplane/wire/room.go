// SPDX-License-Identifier: Apache-2.0

package wire

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/store/space"
)

// keepRoom shares out the room in the store.
func (s *server) keepRoom() (err error) {
	c := s.o.Config.Store
	share := c.NamespaceQuotaBytes
	switch share {
	case 0:
		share = c.QuotaBytes / 4
	case -1:
		share = 0
	}
	s.room, err = space.New(space.Config{
		Store: s.store, Gauge: s.gauge, Quota: c.QuotaBytes, NamespaceQuota: share,
		Namespace: func(name string) int64 {
			if name == metav1.NamespaceSystem {
				return 0 // the cluster's own
			}
			return s.cache.NamespaceBytes(name)
		},
		Metrics: s.metrics, Logger: s.o.Logger,
	})
	return err
}
