// SPDX-License-Identifier: Apache-2.0

// Package lease keeps the leases of nodes: small objects that say that a node is
// alive. One Keeper renews those of all kubelets in a process from one timer,
// spread over the interval and bounded in parallel, so that a thousand simulated
// nodes cost a steady trickle of small writes and not a burst every ten seconds.
package lease

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/rounds"
)

// Config of a Keeper. Zero values are upstream's: a lease of 40 s renewed every 10.
type Config struct {
	Duration time.Duration
	Every    time.Duration
	// Parallel bounds the writes in flight (4).
	Parallel int
	Logger   *slog.Logger
}

// Keeper renews leases.
type Keeper struct {
	cfg    Config
	rounds *rounds.Rounds
}

type held struct {
	name   string
	client Client
	uid    func() types.UID
	lease  *coordinationv1.Lease
}

// Client of the API, as far as leases need it.
type Client interface {
	CoordinationV1() typedcoordinationv1.CoordinationV1Interface
}

// NewKeeper makes a Keeper; Run runs it.
func NewKeeper(cfg Config) *Keeper {
	if cfg.Duration <= 0 {
		cfg.Duration = 40 * time.Second
	}
	if cfg.Every <= 0 {
		cfg.Every = cfg.Duration / 4
	}
	if cfg.Parallel <= 0 {
		cfg.Parallel = 4
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Keeper{cfg: cfg, rounds: rounds.New(cfg.Parallel)}
}

// Hold keeps the lease of a node, from now until the function returned is called.
// The node owns its lease, by the UID that it has at the time: a node that somebody
// deleted is registered again with another one, and what the old one owned is collected.
func (k *Keeper) Hold(node string, client Client, uid func() types.UID) (release func()) {
	h := &held{name: node, client: client, uid: uid}
	return k.rounds.Add("kubelet: lease", 0, func(ctx context.Context) time.Duration { return k.renew(ctx, h) }).Stop
}

// Run renews until ctx ends.
func (k *Keeper) Run(ctx context.Context) error { return k.rounds.Run(ctx) }

func (k *Keeper) renew(ctx context.Context, h *held) (again time.Duration) {
	err := k.write(ctx, h)
	if err != nil && ctx.Err() == nil {
		k.cfg.Logger.WarnContext(ctx, "the lease of a node cannot be renewed", "node", h.name, "error", err)
		return min(k.cfg.Every, time.Second)
	}
	return k.cfg.Every
}

func (k *Keeper) write(ctx context.Context, h *held) error {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Every)
	defer cancel()
	leases := h.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if h.lease == nil {
		l, err := leases.Get(ctx, h.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			l, err = leases.Create(ctx,
				k.fill(h, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: h.name, Namespace: corev1.NamespaceNodeLease}}),
				metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("create lease: %w", err)
			}
			h.lease = l
			return nil
		case err != nil:
			return fmt.Errorf("get lease: %w", err)
		}
		h.lease = l
	}
	l, err := leases.Update(ctx, k.fill(h, h.lease), metav1.UpdateOptions{}) // the one that came back is nobody else's
	if err != nil {
		h.lease = nil // it changed or went: begin again from what is there
		return fmt.Errorf("update lease: %w", err)
	}
	h.lease = l
	return nil
}

func (k *Keeper) fill(h *held, l *coordinationv1.Lease) *coordinationv1.Lease {
	seconds := int32(k.cfg.Duration / time.Second)
	now := metav1.NewMicroTime(time.Now())
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &h.name, &seconds, &now
	if uid := h.uid(); uid != "" {
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: h.name, UID: uid}}
	}
	return l
}
