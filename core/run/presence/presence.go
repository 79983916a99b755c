// SPDX-License-Identifier: Apache-2.0

// Package presence tells the processes of a cluster which of them live. Each keeps one Lease
// (coordination.k8s.io), renewed by one small write every Renew; whatever a process has written
// about itself elsewhere holds for as long as that Lease changes, and needs no sign of life of its own.
//
// Whether a Lease changes is measured by the reader's clock alone, from one look to the next: the
// clocks of other machines may be wrong by any amount. A process that ends in order releases its
// Lease, so that the others need not wait until it has run out. Leases that have run out are deleted
// by those that may (Collect), and the process is remembered as gone while somebody asks about it.
package presence

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/wasmplane/wasmplane/core/run"
)

// Label marks the Leases of a group of processes; its value is the group's name.
const Label = "wasmplane.dev/presence"

// Config of a Keeper.
type Config struct {
	Client    kubernetes.Interface
	Namespace string // where the Leases are; it has to be there
	Group     string // of processes that ask about each other: a label's value
	Identity  string // of this process, unlike every other's
	// Renew is how often the Lease is renewed and the others' are looked at (0: 30 s).
	Renew time.Duration
	// Collect: this process deletes the Leases of those that are gone.
	Collect bool
	Logger  *slog.Logger // nil = none
}

// missed is how many renewals in a row a process may miss before it counts as gone.
const missed = 3

// timeout bounds what is done at a time.
const timeout = 10 * time.Second

// State is what is known of a process.
type State int

// The states. The zero one is that nothing is known.
const (
	// Unknown: the Leases have not been read since somebody asked first, or cannot be.
	Unknown State = iota
	// Present: its Lease changes.
	Present
	// Gone: its Lease was released, has run out, or was there and is no more.
	Gone
	// Unlisted: it has no Lease, and had none for as long as this process looks.
	Unlisted
)

// Keeper keeps this process's Lease and watches the others'.
type Keeper struct {
	cfg   Config
	asked chan struct{}         // about a process of which nothing is known
	lease *coordinationv1.Lease // the own one, as it was stored last; nil = not known

	mu      sync.Mutex
	renewed time.Time            // when the own Lease was written last
	looked  time.Time            // when the others' were read last
	steady  time.Time            // since when they are read without a gap
	others  map[string]*sighting // by the Lease's name
}

// sighting is what was seen of one process.
type sighting struct {
	renewed string    // the time in its Lease, by its own clock
	since   time.Time // when that was seen first, by ours
	listed  bool      // it has, or had, a Lease
	state   State
	asked   time.Time // when somebody asked last
}

// New makes a Keeper; Run runs it.
func New(cfg Config) *Keeper {
	if cfg.Renew <= 0 {
		cfg.Renew = 30 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Keeper{cfg: cfg, asked: make(chan struct{}, 1), others: map[string]*sighting{}}
}

func (k *Keeper) duration() time.Duration { return missed * k.cfg.Renew }

// Held says whether the others can know by the Lease that this process lives. Where it is not
// (the rights or the namespace are missing, as at a server of an older version), the process has
// to give signs of life in another way.
func (k *Keeper) Held() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.renewed.IsZero() && time.Since(k.renewed) < k.duration()
}

// State is what is known of a process. The first question about one that is not known has the
// Leases read again, soon.
func (k *Keeper) State(identity string) State {
	name := k.leaseName(identity)
	k.mu.Lock()
	defer k.mu.Unlock()
	s, known := k.others[name]
	if !known {
		s = &sighting{}
		k.others[name] = s
		select {
		case k.asked <- struct{}{}:
		default: // asked already
		}
	}
	s.asked = time.Now()
	return s.state
}

// leaseName is a name that every identity can be made into, and that tells nothing to whom it does not concern.
func (k *Keeper) leaseName(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return k.cfg.Group + "-" + hex.EncodeToString(sum[:13])
}

// Run renews and looks until ctx ends, and then releases the Lease.
func (k *Keeper) Run(ctx context.Context) error {
	retry := run.Backoff{First: time.Second, Longest: k.cfg.Renew}
	defer func() { k.leave(context.WithoutCancel(ctx)) }()
	good, reported := time.Now(), false
	for {
		wait := k.cfg.Renew
		if err := k.Beat(ctx); err == nil {
			retry.Reset()
			good, reported = time.Now(), false
		} else {
			wait = retry.Next()
			// A cluster that comes up lacks the namespace and the rights for a moment.
			if ctx.Err() == nil && !reported && time.Since(good) >= k.cfg.Renew {
				reported = true
				k.cfg.Logger.WarnContext(ctx, "the lease by which others know that this process lives cannot be renewed, or theirs not be read",
					"namespace", k.cfg.Namespace, "name", k.leaseName(k.cfg.Identity), "retryIn", wait, "error", err)
			}
		}
		if !k.pause(ctx, wait) {
			return nil
		}
	}
}

// pause waits for the next renewal, and meanwhile looks again when somebody asks about a process that is not known.
func (k *Keeper) pause(ctx context.Context, wait time.Duration) bool {
	next := time.NewTimer(wait)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-next.C:
			return true
		case <-k.asked:
			if err := k.look(ctx); err != nil && ctx.Err() == nil {
				k.cfg.Logger.DebugContext(ctx, "the leases of the other processes could not be read", "error", err)
			}
			if !run.Sleep(ctx, min(wait, time.Second)) { // whoever asks often is answered in groups
				return false
			}
		}
	}
}

// Beat renews the Lease and looks at the others' once; Run does so again and again.
func (k *Keeper) Beat(ctx context.Context) error { return errors.Join(k.renew(ctx), k.look(ctx)) }

func (k *Keeper) leases() coordinationclient.LeaseInterface {
	return k.cfg.Client.CoordinationV1().Leases(k.cfg.Namespace)
}

// renew writes the Lease of this process.
func (k *Keeper) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := time.Now()
	if err := k.write(ctx, k.cfg.Identity, int32(max(k.duration()/time.Second, 1))); err != nil {
		return fmt.Errorf("renew the lease: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.renewed = began
	return nil
}

// leave says that this process ends. It is quick or not at all: the Lease runs out anyway.
func (k *Keeper) leave(ctx context.Context) {
	if !k.Held() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := k.write(ctx, "", 1); err != nil {
		k.cfg.Logger.DebugContext(ctx, "the lease of this process could not be released", "error", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.renewed = time.Time{}
}

// write puts the Lease in its place. A holder of "" has released it. What somebody else has
// changed or deleted meanwhile is read again, once.
func (k *Keeper) write(ctx context.Context, holder string, seconds int32) error {
	known := k.lease != nil
	err := k.writeOnce(ctx, holder, seconds)
	if known && (apierrors.IsConflict(err) || apierrors.IsNotFound(err)) {
		err = k.writeOnce(ctx, holder, seconds)
	}
	return err
}

func (k *Keeper) writeOnce(ctx context.Context, holder string, seconds int32) error {
	name, now := k.leaseName(k.cfg.Identity), metav1.NowMicro()
	was := k.lease
	k.lease = nil
	if was == nil {
		var err error
		if was, err = k.leases().Get(ctx, name, metav1.GetOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		} else if err != nil {
			was = nil
		}
	}
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: k.cfg.Namespace, Name: name}}
	if was != nil {
		next = was.DeepCopy()
	}
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	next.Labels[Label] = k.cfg.Group
	next.Spec.HolderIdentity, next.Spec.RenewTime, next.Spec.LeaseDurationSeconds = &holder, &now, &seconds
	var err error
	if was == nil {
		k.lease, err = k.leases().Create(ctx, next, metav1.CreateOptions{})
	} else {
		k.lease, err = k.leases().Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil {
		k.lease = nil
	}
	return err
}

// look reads the Leases of the group.
func (k *Keeper) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	k.mu.Lock()
	before := make(map[string]bool, len(k.others)) // others may be asked about while the list is on its way
	for name := range k.others {
		before[name] = true
	}
	k.mu.Unlock()
	list, err := k.leases().List(ctx, metav1.ListOptions{LabelSelector: Label + "=" + k.cfg.Group})
	if err != nil {
		return fmt.Errorf("list the leases: %w", err)
	}
	return k.collect(ctx, k.see(list.Items, before, time.Now()))
}

// collect deletes the leases of processes that are gone.
func (k *Keeper) collect(ctx context.Context, over []coordinationv1.Lease) error {
	for _, l := range over {
		uid := l.UID
		err := k.leases().Delete(ctx, l.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &l.ResourceVersion}, // it may just have come back
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete the lease of a process that is gone: %w", err)
		}
	}
	return nil
}

// see takes in a list of all Leases, and answers which of them are to be deleted. before are those
// that were known when it was asked for.
func (k *Keeper) see(leases []coordinationv1.Lease, before map[string]bool, now time.Time) (over []coordinationv1.Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now.Sub(k.looked) > 2*k.cfg.Renew {
		// Nobody could be read, and perhaps nobody could write: all have as long as at the beginning.
		k.steady = now
	}
	k.looked = now
	own, listed := k.leaseName(k.cfg.Identity), map[string]bool{}
	for i := range leases {
		l := &leases[i]
		if l.Name == own {
			continue
		}
		listed[l.Name] = true
		s := k.others[l.Name]
		if s == nil {
			s = &sighting{}
			k.others[l.Name] = s
		}
		if silent := k.judge(s, l, now); s.state == Gone && k.cfg.Collect && silent >= k.duration() {
			over = append(over, *l)
		}
	}
	for name, s := range k.others {
		if !listed[name] && before[name] {
			k.unlisted(name, s, now)
		}
	}
	return over
}

// judge says of a process that has a Lease whether it lives, and for how long it has been silent.
func (k *Keeper) judge(s *sighting, l *coordinationv1.Lease, now time.Time) (silent time.Duration) {
	renewed := ""
	if l.Spec.RenewTime != nil {
		renewed = l.Spec.RenewTime.UTC().Format(time.RFC3339Nano)
	}
	if !s.listed || s.renewed != renewed {
		s.listed, s.renewed, s.since, s.state = true, renewed, now, Present
	}
	since := s.since
	if since.Before(k.steady) {
		since = k.steady
	}
	silent = now.Sub(since)
	released := l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == ""
	if released || silent >= k.lasts(l) {
		s.state = Gone
	}
	return silent
}

// unlisted judges a process that has no Lease, and forgets it when nobody asks about it any more.
func (k *Keeper) unlisted(name string, s *sighting, now time.Time) {
	switch {
	case now.Sub(s.asked) >= k.duration():
		delete(k.others, name)
	case s.listed:
		s.renewed, s.listed, s.state = "", false, Gone
	case s.state == Unknown:
		s.state = Unlisted
	}
}

// lasts is how long a Lease holds after it was seen to change: as long as its holder says, within bounds.
func (k *Keeper) lasts(l *coordinationv1.Lease) time.Duration {
	if s := l.Spec.LeaseDurationSeconds; s != nil {
		return min(max(time.Duration(*s)*time.Second, k.duration()), 10*k.duration())
	}
	return k.duration()
}
