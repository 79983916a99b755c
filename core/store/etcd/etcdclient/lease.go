// SPDX-License-Identifier: Apache-2.0

package etcdclient

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A lease for every event would cost etcd more than the event itself, so keys
// that expire at about the same time share one.
const (
	// leaseShare is the part of its ttl by which a key may outlive it.
	leaseShare = 0.05
	leaseSpan  = time.Minute // and at most this long
	// leaseKeys bounds how many keys expire in one transaction.
	leaseKeys = 1000
)

type leases struct {
	store *Store
	mu    sync.Mutex
	byTTL map[time.Duration]*bucket
}

// bucket hands out the current lease for one ttl.
type bucket struct {
	mu    sync.Mutex
	id    clientv3.LeaseID
	until time.Time // the lease serves keys written before this
	keys  int
}

func (l *leases) bucket(ttl time.Duration) *bucket {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byTTL == nil {
		l.byTTL = map[time.Duration]*bucket{}
	}
	b := l.byTTL[ttl]
	if b == nil {
		// Callers choose few different ttls; should one not, old buckets go.
		for old, x := range l.byTTL {
			if len(l.byTTL) < 64 {
				break
			}
			if x.mu.TryLock() {
				x.mu.Unlock()
				delete(l.byTTL, old)
			}
		}
		b = &bucket{}
		l.byTTL[ttl] = b
	}
	return b
}

// get returns a lease that lives at least ttl from now.
func (l *leases) get(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	b := l.bucket(ttl)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.id != 0 && now.Before(b.until) && b.keys < leaseKeys {
		b.keys++
		return b.id, nil
	}
	span := max(min(time.Duration(float64(ttl)*leaseShare), leaseSpan), time.Second)
	seconds := int64((ttl + span + time.Second - 1) / time.Second)
	var resp *clientv3.LeaseGrantResponse
	err := l.store.Outlive(ctx, func(ctx context.Context) (err error) {
		resp, err = l.store.client.Lease.Grant(ctx, seconds) // one too many ends by itself
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("grant a lease of %d s: %w", seconds, err)
	}
	b.id, b.until, b.keys = resp.ID, now.Add(span), 1
	return b.id, nil
}

// forget makes the next get grant a new lease.
func (l *leases) forget(ttl time.Duration) {
	b := l.bucket(ttl)
	b.mu.Lock()
	b.id = 0
	b.mu.Unlock()
}
