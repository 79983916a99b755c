// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
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
	"github.com/wasmplane/wasmplane/core/scheduler/extender"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/native/claims"
	"github.com/wasmplane/wasmplane/core/scheduler/native/devices"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
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
		file := follow(c)
		seen := file.Seen()
		reach := process.Extenders(c.Options, false)
		reach.Logger = c.Options.Logger
		if reach.Metrics, err = extender.NewMetrics(c.Metrics); err != nil {
			return err
		}
		policy, err := current(c, with, reach)
		if err != nil {
			return err
		}
		s, err := scheduler.New(scheduler.Config{
			Client: set.Kube, Informers: inf, Profiles: policy.Profiles, Queue: queue.Config{Backoff: policy.Queue},
			Workers: policy.Workers, Events: record,
			PodGroups: c.Options.Config.FeatureGates[config.GenericWorkload],
			Logger:    c.Options.Logger, Tracer: c.Tracer, Metrics: c.Metrics,
		})
		if err != nil {
			return err
		}
		apply := func() error {
			policy, err := current(c, with, reach)
			if err != nil {
				return err
			}
			return s.Apply(policy)
		}
		defer c.Plugins.OnChange(func() {
			if err := apply(); err != nil {
				c.Options.Logger.ErrorContext(ctx, "the scheduler's profiles stay as they were", "error", err)
			}
		})()
		file.Apply = func(context.Context) error {
			err := apply()
			s.Reloaded(err)
			say(record(corev1.DefaultSchedulerName), err)
			return err
		}
		c.SetPods(inf.Core().V1().Pods().Lister())
		defer c.SetPods(nil)
		defer inf.Shutdown()
		inf.Start(ctx.Done())
		return run.Together(ctx, s.Run, func(ctx context.Context) error { return file.Run(ctx, seen) }, func(ctx context.Context) error {
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
func current(c *process.Component, with native.Config, reach extender.Reach) (profiles.Policy, error) {
	return profiles.Of(c.Options.Config, c.Plugins.Scheduling(), with, reach)
}

// follow has nothing to apply yet. Without a file it follows none.
func follow(c *process.Component) *run.Follow {
	f := &run.Follow{What: "scheduler.configFile", Log: c.Options.Logger, Note: c.Options.Note}
	if path := profiles.File(c.Options.Config); path != "" {
		f.Files = []string{path}
	}
	return f
}

// say writes an event about the lease by which schedulers compete: it is there in every cluster, and nobody else's.
func say(to events.EventRecorder, err error) {
	about := &corev1.ObjectReference{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: "kube-system", Name: "kube-scheduler"}
	if err != nil {
		to.Eventf(about, nil, corev1.EventTypeWarning, "ConfigurationRefused", "Configure", "%v; the configuration before stays in force", err)
		return
	}
	to.Eventf(about, nil, corev1.EventTypeNormal, "Configured", "Configure", "The changed configuration is in force")
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
