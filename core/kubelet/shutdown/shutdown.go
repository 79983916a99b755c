// SPDX-License-Identifier: Apache-2.0

// Package shutdown ends a node's pods, in the order of their priorities and each within its time, when the machine goes
// down, and keeps the machine from going before. It takes no new pods from then on, until the shutdown is taken back.
// Who goes down is asked of the machine's Power; what ends when is a plan made in advance (Periods).
package shutdown

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/run"
)

// Words of upstream's kubelet.
const (
	refused        = "NodeShutdown"
	refusedMessage = "Pod was rejected as the node is shutting down."
	ended          = "Terminated"
	endedMessage   = "Pod was terminated in response to imminent node shutdown."
	event          = "NodeShutdown"
)

// errGoing is what the node says of itself.
var errGoing = errors.New("node is shutting down")

// Power is who shuts the machine down: systemd's logind.
type Power interface {
	// Delay is how long it waits for those that hold a shutdown up.
	Delay(ctx context.Context) (time.Duration, error)
	// Lengthen has it wait so long.
	Lengthen(ctx context.Context, delay time.Duration) error
	// Hold up shutdowns, until let is called.
	Hold(ctx context.Context) (let func() error, err error)
	// Shutdowns says true when one begins and false when it is taken back, and at first whether one has begun. It is
	// closed when Power is gone.
	Shutdowns(ctx context.Context) (<-chan bool, error)
	Close() error
}

// Pods of the node, and what the node says.
type Pods interface {
	// Remaining are those that have not ended, or still have volumes.
	Remaining() []*corev1.Pod
	// Terminate has a pod end within so many seconds.
	Terminate(uid types.UID, reason, message string, grace int64)
	// NodeEvent records an event about the node.
	NodeEvent(kind, reason, message string)
	// Refresh has the node's status made and written.
	Refresh()
}

// Config of a Keeper. All is required.
type Config struct {
	Periods Periods
	// Connect to who shuts the machine down.
	Connect func(ctx context.Context) (Power, error)
	Logger  *slog.Logger
}

// Keeper of one node.
type Keeper struct {
	cfg   Config
	going atomic.Bool
}

// New makes a Keeper; Run runs it.
func New(cfg Config) *Keeper { return &Keeper{cfg: cfg} }

// Name of the node's admission.
func (*Keeper) Name() string { return refused }

// Admit refuses pods while the machine goes down. It is a kubelet.Admitter.
func (k *Keeper) Admit(context.Context, *corev1.Pod, *corev1.Node) (admitted bool, reason, message string, err error) {
	if k.going.Load() {
		return false, refused, refusedMessage, nil
	}
	return true, "", "", nil
}

// Unwell is why the node is not ready; nil if it is.
func (k *Keeper) Unwell() error {
	if k.going.Load() {
		return errGoing
	}
	return nil
}

// look is how often it is looked whether the pods of a group have ended.
const look = 200 * time.Millisecond

// Run watches over the machine until ctx ends.
func (k *Keeper) Run(ctx context.Context, pods Pods) error {
	if len(k.cfg.Periods) == 0 {
		<-ctx.Done()
		return nil
	}
	retry := run.Backoff{First: time.Second, Longest: time.Minute}
	said := ""
	for {
		err := k.watch(ctx, pods, func() { said = ""; retry.Reset() })
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			k.cfg.Logger.WarnContext(ctx, "a shutdown of this machine would end its pods without the time of node.shutdownGracePeriod: "+
				"that needs systemd's logind, over D-Bus; trying again", "error", err)
		}
		if !retry.Wait(ctx) {
			return nil
		}
	}
}

// watch holds shutdowns up, and sees to those that begin, until the machine's Power is gone.
func (k *Keeper) watch(ctx context.Context, pods Pods, begun func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	power, err := k.cfg.Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = power.Close() }()
	if err := k.lengthen(ctx, power); err != nil {
		return err
	}
	signs, err := power.Shutdowns(ctx)
	if err != nil {
		return err
	}
	hold := &hold{power: power}
	defer hold.let()
	if err := hold.up(ctx); err != nil {
		return err
	}
	begun()
	k.cfg.Logger.InfoContext(ctx, "shutdowns of this machine wait for its pods", "longest", k.cfg.Periods.Total())
	return k.follow(ctx, pods, signs, hold)
}

// lengthen has shutdowns wait for as long as the pods may take.
func (k *Keeper) lengthen(ctx context.Context, power Power) error {
	delay, err := power.Delay(ctx)
	if err != nil || delay >= k.cfg.Periods.Total() {
		return err
	}
	return power.Lengthen(ctx, k.cfg.Periods.Total())
}

// follow sees to shutdowns that begin and are taken back.
func (k *Keeper) follow(ctx context.Context, pods Pods, signs <-chan bool, hold *hold) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case going, ok := <-signs:
			if !ok {
				return errors.New("the connection to logind broke off")
			}
			if err := k.sign(ctx, pods, going, signs, hold); err != nil {
				return err
			}
		}
	}
}

// sign sees to one. While pods end, a shutdown that is taken back keeps those whose turn has not come.
func (k *Keeper) sign(ctx context.Context, pods Pods, going bool, signs <-chan bool, hold *hold) error {
	for {
		if going != k.going.Load() {
			k.set(ctx, pods, going)
		}
		if !going {
			return hold.up(ctx)
		}
		next, back := k.end(ctx, pods, signs)
		if !back {
			hold.let()
			return nil
		}
		going = next
	}
}

// set says to all what there is to do.
func (k *Keeper) set(ctx context.Context, pods Pods, going bool) {
	k.going.Store(going)
	message := "Shutdown manager detected shutdown event"
	if !going {
		message = "Shutdown manager detected shutdown cancellation"
	}
	k.cfg.Logger.InfoContext(ctx, "a shutdown of this machine", "goes", going)
	pods.NodeEvent(corev1.EventTypeNormal, event, message)
	pods.Refresh()
}

// end the pods in their order. It gives up when there is another sign, which it answers.
func (k *Keeper) end(ctx context.Context, pods Pods, signs <-chan bool) (next, other bool) {
	for _, g := range k.cfg.Periods.Plan(pods.Remaining()) {
		of := map[types.UID]bool{}
		for _, v := range g.Pods {
			k.cfg.Logger.InfoContext(ctx, "a pod ends: the machine goes down", "kind", "Pod", "namespace", v.Pod.Namespace, "name", v.Pod.Name,
				"grace", v.Grace)
			pods.Terminate(v.Pod.UID, ended, endedMessage, v.Grace)
			of[v.Pod.UID] = true
		}
		until := time.NewTimer(g.Wait)
		next, other = await(ctx, until.C, signs, func() bool { return none(pods.Remaining(), of) })
		until.Stop()
		if other || ctx.Err() != nil {
			return next, other
		}
	}
	return false, false
}

// await until done, or the time is over, or there is another sign.
func await(ctx context.Context, until <-chan time.Time, signs <-chan bool, done func() bool) (next, other bool) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return false, false
		case <-until:
			return false, false
		case going, ok := <-signs:
			if ok && !going {
				return false, true
			}
			if !ok {
				signs = nil // the pods end all the same
			}
		case <-tick.C:
		}
	}
	return false, false
}

func none(remaining []*corev1.Pod, of map[types.UID]bool) bool {
	for _, p := range remaining {
		if of[p.UID] {
			return false
		}
	}
	return true
}

// hold on shutdowns, one at the most.
type hold struct {
	power Power
	free  func() error
}

func (h *hold) up(ctx context.Context) error {
	if h.free != nil {
		return nil
	}
	free, err := h.power.Hold(ctx)
	if err == nil {
		h.free = free
	}
	return err
}

func (h *hold) let() {
	if h.free != nil {
		_ = h.free() // what is closed holds nothing up
		h.free = nil
	}
}
