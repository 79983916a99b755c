// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	nodeutil "k8s.io/component-helpers/node/util"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/members"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/standalone"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/join/peers"
)

// ClusterOf is the cluster of the machine with that data directory, as a server or a worker of
// it sees it. hold bounds how long others wait for an upgrade that has died.
func ClusterOf(dir datadir.Dir, hold time.Duration) (Cluster, error) {
	m, err := join.Read(dir.Member())
	if err == nil {
		cfg := standalone.Member(dir, m)
		set, err := client.New(cfg)
		if err != nil {
			return nil, err
		}
		return &worker{set.Kube, cfg, m}, nil
	}
	if !errors.Is(err, join.ErrNotJoined) {
		return nil, err
	}
	cfg, err := dir.Own("upgrade")
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
	state, err := dir.ReadState()
	if err != nil {
		return nil, err
	}
	return &server{kube: set.Kube, cfg: set.Config, id: id, hold: hold, node: state.RealNode()}, nil
}

// server sees the cluster as one of its servers.
type server struct {
	kube kubernetes.Interface
	cfg  *rest.Config
	id   string
	node string // of this machine; "" = it has none
	hold time.Duration
}

func (s *server) Stored() bool { return true }

// Healthy fails until the server is ready, and has its place among the others again.
func (s *server) Healthy(ctx context.Context) error {
	own := peers.Own(ctx, s.cfg)
	if own.Err != nil {
		return own.Err
	}
	others, err := s.others(ctx, own)
	if err != nil {
		return err
	}
	for _, o := range others {
		for _, m := range o.Members { // one that does not answer says nothing
			if m.Name == own.Server.Name && (!m.Alive || m.Learner) {
				return fmt.Errorf("server %s does not see this one's store yet", o.Called())
			}
		}
	}
	if s.node == "" {
		return nil
	}
	return nodeReady(ctx, s.kube, s.node)
}

// others are all servers but this one, each asked by itself.
func (s *server) others(ctx context.Context, own peers.Peer) ([]peers.Peer, error) {
	addresses, err := peers.Addresses(ctx, s.kube)
	if err != nil {
		return nil, err
	}
	addresses = slices.DeleteFunc(addresses, func(a string) bool { return a == own.Server.Address })
	return peers.Ask(ctx, s.cfg, addresses...), nil
}

// Check fails where another server is away or not ready, since two are more than a cluster may
// do without, and where the versions are too far apart.
func (s *server) Check(ctx context.Context, is release) error {
	own := peers.Own(ctx, s.cfg)
	if own.Err != nil {
		return fmt.Errorf("this server is not ready, so that nobody would see whether a new binary works: %w", own.Err)
	}
	// A light server that is away is nowhere else: it is no member, and those that answer are all that has an address.
	if away := append(members.Away(own.Members), awayLights(own)...); len(away) > 0 {
		return fmt.Errorf("server %s does not answer, or does not vote: one machine after the other, so first start it, or take it out by `wasmplane node remove`", strings.Join(away, ", "))
	}
	others, err := s.others(ctx, own)
	if err != nil {
		return err
	}
	for _, o := range others {
		if o.Err != nil {
			return fmt.Errorf("server %s is not ready: one machine after the other, so wait for it or look after it first: %w", o.Called(), o.Err)
		}
		if away := members.Away(o.Members); len(away) > 0 {
			return fmt.Errorf("server %s does not reach the store of %s: without this machine too few may be left to agree, so mend that first", o.Called(), strings.Join(away, ", "))
		}
	}
	if err := besideServers(is, others); err != nil {
		return err
	}
	nodes, err := s.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("ask for the versions of the nodes: %w", err)
	}
	return beforeKubelets(is.kubernetes, s.node, nodes.Items)
}

// awayLights are the light servers that do not answer, but for the server itself.
func awayLights(own peers.Peer) (names []string) {
	for _, l := range own.Light {
		if !l.Alive && l.Name != own.Server.Name {
			names = append(names, l.Name)
		}
	}
	return names
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
	cfg    *rest.Config
	member join.Member
}

func (*worker) Stored() bool { return false }

// Lock is not needed: workers don't depend on each other.
func (*worker) Lock(context.Context) (func(context.Context), error) {
	return func(context.Context) {}, nil
}

// Check fails where a server is older than the node would be, or cannot be asked for its version.
func (w *worker) Check(ctx context.Context, is release) error {
	addresses, err := peers.Addresses(ctx, w.kube)
	if err != nil {
		return err
	}
	servers := peers.Ask(ctx, w.cfg, addresses...)
	for _, o := range servers {
		if o.Err != nil {
			return fmt.Errorf("server %s cannot be asked for its version: %w; the servers come first, so start it, or take it out by `wasmplane node remove`", o.Called(), o.Err)
		}
	}
	return afterServers(is, servers)
}

func (w *worker) Healthy(ctx context.Context) error { return nodeReady(ctx, w.kube, w.member.Node) }

func nodeReady(ctx context.Context, kube kubernetes.Interface, name string) error {
	n, err := kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if _, ready := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady); ready == nil || ready.Status != corev1.ConditionTrue {
		return fmt.Errorf("node %s is not ready", n.Name)
	}
	return nil
}
