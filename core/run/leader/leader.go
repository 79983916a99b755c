// SPDX-License-Identifier: Apache-2.0

// Package leader runs work that only one of several processes may do at a time, by
// leader election on a Lease.
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Election is one lease that several processes compete for.
type Election struct {
	Client kubernetes.Interface
	// Namespace and Name of the Lease; Identity of this process, unique among the
	// competitors.
	Namespace, Name, Identity string
	Logger                    *slog.Logger
	// LeaseDuration 15 s, RenewDeadline 10 s and RetryPeriod 2 s, upstream's, where 0.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Watch is told whether the lease is renewed in time; nil = nobody is.
	Watch *leaderelection.HealthzAdaptor
	// Follows is called, perhaps more than once, when another process is seen to hold the
	// lease: this one waits for as long as that lives. Nil = nobody is told.
	Follows func()
}

// ErrLeadershipLost ends the work of a leader that could not renew its lease:
// another process may already have taken over, so this one has to stop.
var ErrLeadershipLost = errors.New("leadership was lost")

// Lead waits until this process holds the lease and then calls work with a
// context that ends with the leadership. The lease is given up once work has
// returned, so that a successor need not wait for its expiry and never works
// beside its predecessor.
func (e Election) Lead(ctx context.Context, work func(ctx context.Context) error) error {
	// The lease outlives ctx by as long as work needs to stop.
	renewing, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	stopWaiting := context.AfterFunc(ctx, giveUp)
	defer stopWaiting()

	var mu sync.Mutex
	var began, ended bool
	worked := make(chan error, 1)
	lead := func(leading context.Context) {
		mu.Lock()
		if ended || ctx.Err() != nil {
			mu.Unlock()
			return
		}
		began = true
		stopWaiting()
		mu.Unlock()
		defer giveUp()
		e.Logger.InfoContext(leading, "this process leads now", "lease", e.Namespace+"/"+e.Name)
		working, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(leading, stop)()
		err := work(working)
		if ctx.Err() == nil && leading.Err() != nil {
			err = ErrLeadershipLost // whatever work says of its context's end
		}
		worked <- err
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name},
		Client:     e.Client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		LeaseDuration: or(e.LeaseDuration, 15*time.Second),
		RenewDeadline: or(e.RenewDeadline, 10*time.Second),
		RetryPeriod:   or(e.RetryPeriod, 2*time.Second),
		// The elector would ask the API to release the lease before it ends the leading
		// context. Where the API does not answer, work would go on past the lease's end.
		ReleaseOnCancel: false,
		Name:            e.Name,
		WatchDog:        e.Watch,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: lead,
			OnStoppedLeading: func() {},
			OnNewLeader: func(holder string) {
				if e.Follows != nil && holder != "" && holder != e.Identity {
					e.Follows()
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("set up the election of %s/%s: %w", e.Namespace, e.Name, err)
	}
	elector.Run(renewing)
	mu.Lock()
	ended = true
	wait := began
	mu.Unlock()
	err = ErrLeadershipLost
	if wait {
		err = <-worked
	} else if ctx.Err() != nil {
		err = nil
	}
	if !errors.Is(err, ErrLeadershipLost) {
		e.release(context.WithoutCancel(ctx), lock)
	}
	return err
}

// release gives up the lease, if this process still holds it. A failure is no harm:
// the lease then ends by itself.
func (e Election) release(ctx context.Context, lock *resourcelock.LeaseLock) {
	ctx, cancel := context.WithTimeout(ctx, or(e.RenewDeadline, 10*time.Second))
	defer cancel()
	held, _, err := lock.Get(ctx)
	if err == nil && held.HolderIdentity == e.Identity {
		now := metav1.Now()
		err = lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: held.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		e.Logger.WarnContext(ctx, "the lease could not be released; a successor waits until it ends", "lease", e.Namespace+"/"+e.Name,
			"error", err)
	}
}

// Stand leads whenever it may, until ctx ends or work fails: work that lost the
// leadership is begun afresh when it is won again. A process that was held up, by
// a laptop's sleep or a machine out of breath, so goes on where it would end.
func (e Election) Stand(ctx context.Context, work func(ctx context.Context) error) error {
	for {
		err := e.Lead(ctx, work)
		if !errors.Is(err, ErrLeadershipLost) || ctx.Err() != nil {
			return err
		}
		e.Logger.WarnContext(ctx, "this process could not renew its lease in time and stopped leading; it stands for it again", "lease", e.Namespace+"/"+e.Name)
	}
}

func or(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}
