// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	nodeutil "k8s.io/component-helpers/node/util"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/members"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/wire"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/store/mark"
)

// ClusterOf is the cluster of the machine with that data directory, as a server or a worker of
// it sees it. hold bounds how long others wait for an upgrade that has died.
func ClusterOf(dir datadir.Dir, hold time.Duration) (Cluster, error) {
	m, err := join.Read(dir.Member())
	if err == nil {
		set, err := client.New(wire.Member(dir, m))
		if err != nil {
			return nil, err
		}
		return &worker{set.Kube, m}, nil
	}
	if !errors.Is(err, join.ErrNotJoined) {
		return nil, err
	}
	cfg, err := client.FromKubeconfig(dir.Kubeconfig(), "upgrade")
	if err != nil {
		return nil, err
	}
	set, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	id, err := dir.Identity()
	if err != nil {
		return nil, err
	}
	return &server{set.Kube, id, hold}, nil
}

// server sees the cluster as one of its servers.
type server struct {
	kube kubernetes.Interface
	id   string
	hold time.Duration
}

func (s *server) Stored() bool { return true }

func (s *server) Healthy(ctx context.Context) error {
	_, err := s.kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err
}

// Check fails where another server is away: two are more than a cluster may do without.
func (s *server) Check(ctx context.Context, _ string) error {
	away, err := members.Away(ctx, s.kube)
	if err != nil {
		return err
	}
	if len(away) > 0 {
		return fmt.Errorf("server %s does not answer, or does not vote: one machine after the other, so first start it, or take it out by `wasmplane node remove`", strings.Join(away, ", "))
	}
	return nil
}

// lease is held by who upgrades a server.
const lease = "wasmplane-upgrade"

func (s *server) Lock(ctx context.Context) (func(context.Context), error) {
	leases := s.kube.CoordinationV1().Leases(metav1.NamespaceSystem)
	now := metav1.NowMicro()
	mine := coordinationv1.LeaseSpec{
		HolderIdentity: &s.id, AcquireTime: &now, RenewTime: &now, LeaseDurationSeconds: ptr.To(int32(s.hold.Seconds())),
	}
	held, err := leases.Get(ctx, lease, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		held, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: lease}, Spec: mine}, metav1.CreateOptions{})
	case err == nil:
		if until, other := busy(held, s.id); other && time.Now().Before(until) {
			return nil, fmt.Errorf("another server is being upgraded: one after the other (should that upgrade have died, this goes on after %s, or when the lease %s of kube-system is deleted)", until.Format(time.TimeOnly), lease)
		}
		held.Spec = mine
		held, err = leases.Update(ctx, held, metav1.UpdateOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("keep other servers from being upgraded meanwhile: %w", err)
	}
	uid := held.UID
	return func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		// Should it fail, the lease runs out.
		_ = leases.Delete(ctx, lease, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	}, nil
}

// busy tells until when a lease is held, and whether by somebody else.
func busy(l *coordinationv1.Lease, id string) (until time.Time, other bool) {
	if l.Spec.HolderIdentity == nil || l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil {
		return until, false
	}
	return l.Spec.RenewTime.Add(time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second), *l.Spec.HolderIdentity != id
}

// worker sees the cluster as one of its nodes.
type worker struct {
	kube   kubernetes.Interface
	member join.Member
}

func (*worker) Stored() bool { return false }

// Lock is not needed: workers don't depend on each other.
func (*worker) Lock(context.Context) (func(context.Context), error) {
	return func(context.Context) {}, nil
}

// Check fails where the servers are older than the node would be.
func (w *worker) Check(_ context.Context, kubernetes string) error {
	info, err := w.kube.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("ask the servers for their version: %w", err)
	}
	theirs, ok := mark.Parse(info.GitVersion)
	ours, too := mark.Parse(kubernetes)
	if ok && too && ours.After(theirs) {
		return fmt.Errorf("the new binary is of Kubernetes %s, and the servers serve %s: upgrade the servers first", kubernetes, info.GitVersion)
	}
	return nil
}

func (w *worker) Healthy(ctx context.Context) error {
	n, err := w.kube.CoreV1().Nodes().Get(ctx, w.member.Node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if _, ready := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady); ready == nil || ready.Status != corev1.ConditionTrue {
		return fmt.Errorf("node %s is not ready", n.Name)
	}
	return nil
}
