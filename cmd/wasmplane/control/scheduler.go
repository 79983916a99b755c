// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/profiles"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/native/claims"
	"github.com/wasmplane/wasmplane/core/scheduler/native/devices"
)

// Scheduler runs the scheduler while this process leads. It is ready when it has seen the
// cluster, or when another process leads: it may then wait for as long as that lives.
func Scheduler(ctx context.Context, c *process.Component, ready func()) error {
	set, err := client.New(c.Config)
	if err != nil {
		return err
	}
	return c.Lead(ctx, set.Kube, "kube-scheduler", ready, func(ctx context.Context) error {
		c.SetCatchingUp(true)
		defer c.SetCatchingUp(false)
		inf := informers.NewSharedInformerFactory(set.Kube, 0)
		record, stop, err := recorders(ctx, set.Kube)
		if err != nil {
			return err
		}
		defer stop()
		with := native.Config{Client: set.Kube, Informers: inf, Devices: devices.NewLedger(inf), Volumes: &claims.Assumed{}}
		policy, err := current(c, with)
		if err != nil {
			return err
		}
		s, err := scheduler.New(scheduler.Config{
			Client: set.Kube, Informers: inf, Profiles: policy.Profiles, Queue: policy.Queue, Workers: policy.Workers, Events: record,
			PodGroups: c.Options.Config.FeatureGates[config.GenericWorkload],
			Logger:    c.Options.Logger, Tracer: c.Tracer, Metrics: c.Metrics,
		})
		if err != nil {
			return err
		}
		defer c.Plugins.OnChange(func() {
			policy, err := current(c, with)
			if err == nil {
				err = s.SetProfiles(policy.Profiles)
			}
			if err != nil {
				c.Options.Logger.ErrorContext(ctx, "the scheduler's profiles stay as they were", "error", err)
			}
		})()
		defer inf.Shutdown()
		inf.Start(ctx.Done())
		return run.Together(ctx, s.Run, func(ctx context.Context) error {
			if run.Await(ctx, s.Ready()) {
				c.SetCatchingUp(false)
				ready()
			}
			<-ctx.Done()
			return nil
		})
	})
}

// current are the profiles of the configuration, with the plugins that there are now.
func current(c *process.Component, with native.Config) (profiles.Policy, error) {
	return profiles.Of(c.Options.Config, c.Plugins.Scheduling(), with)
}

// recorders make event recorders, one for each profile name.
func recorders(ctx context.Context, kube kubernetes.Interface) (func(string) events.EventRecorder, func(), error) {
	b := events.NewBroadcaster(&events.EventSinkImpl{Interface: kube.EventsV1()})
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, nil, fmt.Errorf("record events: %w", err)
	}
	var mu sync.Mutex
	made := map[string]events.EventRecorder{}
	return func(name string) events.EventRecorder {
		mu.Lock()
		defer mu.Unlock()
		if made[name] == nil {
			made[name] = b.NewRecorder(scheme.Scheme, name)
		}
		return made[name]
	}, b.Shutdown, nil
}
