// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"github.com/wasmplane/wasmplane/core/store/space"
)

var _ space.Gauge = (*Server)(nil)

// Usage implements space.Gauge.
func (s *Server) Usage() space.Usage {
	backend := s.etcd.Server.Backend()
	return space.Usage{
		InUse: backend.SizeInUse(), File: backend.Size(),
		Refusing: slices.ContainsFunc(s.etcd.Server.Alarms(),
			func(a *etcdserverpb.AlarmMember) bool { return a.Alarm == etcdserverpb.AlarmType_NOSPACE }),
	}
}

// Refresh implements space.Gauge: pages that a transaction frees are free from the
// next one on, and counted when that one commits, which nothing does in a store
// that is not written to.
func (s *Server) Refresh() {
	backend := s.etcd.Server.Backend()
	for range 2 {
		tx := backend.BatchTx()
		tx.LockOutsideApply()
		tx.UnsafeDelete(schema.Meta, []byte("wasmplane: nothing")) // there is none: only the transaction matters
		tx.Unlock()
		backend.ForceCommit()
	}
}

// Reclaim implements space.Gauge: etcd refuses writes from the moment it was full
// until somebody says that there is room again.
func (s *Server) Reclaim(ctx context.Context) error {
	if err := s.etcd.Server.Backend().Defrag(); err != nil {
		return fmt.Errorf("defragment: %w", err)
	}
	size := s.etcd.Server.Backend().Size()
	if size >= s.quota {
		return fmt.Errorf("the database takes %d bytes without its free pages, and its quota is %d: delete objects, or raise the quota", size, s.quota)
	}
	for _, a := range s.etcd.Server.Alarms() {
		if a.Alarm != etcdserverpb.AlarmType_NOSPACE {
			continue
		}
		ctx, cancel := s.store.Bound(ctx)
		_, err := s.store.Client().Maintenance.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a))
		cancel()
		if err != nil {
			return fmt.Errorf("take back the alarm: %w", err)
		}
	}
	return nil
}
