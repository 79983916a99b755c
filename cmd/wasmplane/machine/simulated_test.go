// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/simulatednodes"
	"github.com/wasmplane/wasmplane/core/kubelet/lease"
)

// slow is a server that takes a quarter of a second for each lease.
type slow struct {
	typedcoordinationv1.CoordinationV1Interface
	typedcoordinationv1.LeaseInterface

	mu      sync.Mutex
	renewed map[string]time.Time
	longest time.Duration // between two renewals
}

func (s *slow) CoordinationV1() typedcoordinationv1.CoordinationV1Interface { return s }
func (s *slow) Leases(string) typedcoordinationv1.LeaseInterface            { return s }

func (s *slow) Get(_ context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}

func (s *slow) Update(_ context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	time.Sleep(250 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, before := s.renewed[l.Name]; before {
		s.longest = max(s.longest, time.Since(last))
	}
	s.renewed[l.Name] = time.Now()
	return l, nil
}

// However many nodes there are, their leases are renewed in time by a server that is slow.
func TestLeasesOfManyNodesAreRenewedInTime(t *testing.T) {
	for _, nodes := range []int{1, 1000, 5000} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &slow{renewed: map[string]time.Time{}}
				k := lease.NewKeeper(lease.Config{Parallel: simulatednodes.LeasesAtOnce(nodes)})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); _ = k.Run(ctx) }()
				for i := range nodes {
					k.Hold(fmt.Sprint("n", i), s, func() types.UID { return "u" })
				}
				time.Sleep(time.Minute)
				cancel()
				<-done
				if len(s.renewed) != nodes || s.longest > 20*time.Second {
					t.Errorf("%d of %d leases are renewed, one after %s", len(s.renewed), nodes, s.longest)
				}
			})
		})
	}
}
