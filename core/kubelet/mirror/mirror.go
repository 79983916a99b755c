// SPDX-License-Identifier: Apache-2.0

// Package mirror shows a node's static pods in the API. A mirror that somebody deletes
// comes back, one of a pod that is no more goes, and none is ever run.
package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/kubelet/rounds"
	"github.com/wasmplane/wasmplane/core/kubelet/static"
	"github.com/wasmplane/wasmplane/core/run"
)

// Pods by their names.
type Pods map[types.NamespacedName]*corev1.Pod

// Client of the API, as far as mirrors need it.
type Client interface {
	CoreV1() typedcorev1.CoreV1Interface
}

// Config of a Keeper.
type Config struct {
	Client Client
	// Node is the UID of the node that owns the mirrors, which is registered by then.
	Node func() types.UID
	// Pods are the static pods that there are, those that end too; ok is false while that is not known.
	Pods func() (pods Pods, ok bool)
	// Known is told of each mirror: the pod's status is to be written to it.
	Known  func(m *corev1.Pod)
	Logger *slog.Logger
}

// Keeper keeps the mirrors of one node.
type Keeper struct {
	cfg  Config
	turn atomic.Pointer[rounds.Turn] // nil: nobody keeps them yet

	mu   sync.Mutex
	have Pods
}

// New makes a Keeper; Run runs it.
func New(cfg Config) *Keeper {
	return &Keeper{cfg: cfg, have: Pods{}}
}

// Refresh has the static pods looked at again. It never blocks.
func (k *Keeper) Refresh() {
	if turn := k.turn.Load(); turn != nil {
		turn.Soon()
	}
}

// Changed takes a mirror as the API has it.
func (k *Keeper) Changed(m *corev1.Pod) {
	k.mu.Lock()
	k.have[static.Key(m)] = m
	k.mu.Unlock()
	if m.DeletionTimestamp == nil {
		k.cfg.Known(m)
	}
	k.Refresh()
}

// Gone says that the API has a mirror no more.
func (k *Keeper) Gone(m *corev1.Pod) {
	k.mu.Lock()
	if have := k.have[static.Key(m)]; have != nil && have.UID == m.UID {
		delete(k.have, static.Key(m))
	}
	k.mu.Unlock()
	k.Refresh()
}

// Run keeps the mirrors until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	r := rounds.New(1)
	k.Join(ctx, r)
	return r.Run(ctx)
}

// Join is Run by rounds.
func (k *Keeper) Join(ctx context.Context, r *rounds.Rounds) {
	retry := run.Backoff{First: 100 * time.Millisecond, Longest: 10 * time.Second}
	turn := r.Add("kubelet: mirrors of static pods", 0, func(context.Context) time.Duration {
		err := k.sync(ctx)
		if err != nil && ctx.Err() == nil {
			wait := retry.Next()
			k.cfg.Logger.WarnContext(ctx, "static pods cannot be shown in the API; trying again", "error", err, "retryIn", wait)
			return wait
		}
		retry.Reset()
		return rounds.Never
	})
	k.turn.Store(turn)
	turn.Soon() // for what came while nobody could be woken
	context.AfterFunc(ctx, turn.Stop)
}

// sync deletes and creates mirrors; one that fails keeps up no other.
func (k *Keeper) sync(ctx context.Context) error {
	pods, ok := k.cfg.Pods()
	if !ok {
		return nil
	}
	k.mu.Lock()
	have := maps.Clone(k.have)
	k.mu.Unlock()
	var failed []error
	plan := static.PlanMirrors(pods, have)
	for _, m := range plan.Delete {
		if err := k.remove(ctx, m); err != nil {
			failed = append(failed, err)
		}
	}
	for _, p := range plan.Create {
		if err := k.create(ctx, p); err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) == 0 && len(plan.Delete) > 0 {
		k.Refresh() // others may take their names
	}
	return errors.Join(failed...)
}

func (k *Keeper) remove(ctx context.Context, m *corev1.Pod) error {
	err := k.cfg.Client.CoreV1().Pods(m.Namespace).Delete(ctx, m.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &m.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete mirror pod %s/%s: %w", m.Namespace, m.Name, err)
	}
	k.Gone(m)
	return nil
}

func (k *Keeper) create(ctx context.Context, p *corev1.Pod) error {
	want := static.Mirror(p, k.cfg.Node())
	got, err := k.cfg.Client.CoreV1().Pods(want.Namespace).Create(ctx, want, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create mirror pod %s/%s: %w", want.Namespace, want.Name, err)
	}
	k.mu.Lock()
	k.have[static.Key(got)] = got
	k.mu.Unlock()
	k.cfg.Known(got)
	return nil
}
