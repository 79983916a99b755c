// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	oteltrace "go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/all"
	"github.com/wasmplane/wasmplane/core/controllers/nodeipam"
	"github.com/wasmplane/wasmplane/core/controllers/nodelifecycle"
	"github.com/wasmplane/wasmplane/core/controllers/reconcilehost"
	"github.com/wasmplane/wasmplane/core/controllers/serviceaccount"
	"github.com/wasmplane/wasmplane/core/controllers/signing"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/leader"
	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
)

// component is what a component of this process is given.
type component struct {
	o          Options
	config     *rest.Config // the component's own identity
	identities client.Identities
	tracer     oteltrace.Tracer
	plugins    *plugins
	dynamic    dynamic.Interface // of a process of its own
	spans      *tracing          // of a process of its own
	metrics    *prometheus.Registry

	watch      *leaderelection.HealthzAdaptor // of a process of its own; nil = nobody asks
	catchingUp atomic.Bool                    // the scheduler leads, and has not seen the cluster yet
}

// holder is this process among those that compete for a lease. Where it has the
// data directory to itself, the directory's identity stands for it: after a kill -9 the
// next process there need not wait until the lease of the dead one has run out. On a
// shared store the machine's boot goes with it, since a clone has a copy of the directory.
func (c *component) holder() (string, error) {
	if c.spans != nil {
		return hostname() + "_" + string(uuid.NewUUID()), nil
	}
	return identity(c.o, hostname())
}

// hostname is for people to recognize a process by; nothing depends on it.
func hostname() string {
	if host, err := os.Hostname(); err == nil {
		return host
	}
	return "unknown"
}

// identity names this server among those that share a cluster, for people by its host first.
func identity(o Options, host string) (string, error) {
	id, err := o.Dir.Identity()
	if err != nil {
		return "", err
	}
	if len(o.Config.Store.Endpoints) > 0 {
		boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return "", fmt.Errorf("read which boot of this machine it is, to be told from its clones: %w", err)
		}
		sum := sha256.Sum256(append([]byte(id), boot...))
		id = hex.EncodeToString(sum[:16])
	}
	return host + "_" + id, nil
}

// lead runs work while this process leads the component's election. follows is called
// when another process is seen to lead; it may be nil.
func (c *component) lead(ctx context.Context, kube kubernetes.Interface, name string, follows func(), work func(context.Context) error) error {
	if c.o.Lease != "" {
		name = c.o.Lease
	}
	holder, err := c.holder()
	if err != nil {
		return err
	}
	return leader.Election{
		Client: kube, Namespace: "kube-system", Name: name, Identity: holder, Logger: c.o.Logger, Watch: c.watch, Follows: follows,
	}.Stand(ctx, work)
}

// controlling is what only the owner of the cluster's keys can give to the control loops.
type controlling struct {
	rootCA    []byte
	minter    serviceaccount.Minter // nil: token secrets stay empty
	authority signing.Authority     // nil: certificate requests stay unsigned
}

// controllers runs the control loops while this process leads.
func (c *component) controllers(ctx context.Context, with controlling) error {
	set, err := client.New(c.config)
	if err != nil {
		return err
	}
	if c.o.OnlyPlugins {
		return c.lead(ctx, set.Kube, "wasmplane-plugin-controllers", nil, func(ctx context.Context) error { return c.reconcilers(ctx, set) })
	}
	manager, err := all.New(all.Config{
		Controllers: c.o.Config.Controllers.Enabled,
		Clients:     all.FromIdentities(c.config, c.identities),
		RootCA:      with.rootCA, Minter: with.minter, CertificateAuthority: with.authority,
		BootstrapTokens: c.o.Config.APIServer.BootstrapTokens,
		NodeIPAM:        nodeipam.Config{CIDRs: []string{c.o.Config.Cluster.PodCIDR}, NodeBits: []int{c.o.Config.Cluster.NodeCIDRMaskSize}},
		NodeLifecycle:   nodelifecycle.Config{MonitorGrace: time.Duration(c.o.Config.Controllers.NodeMonitorGracePeriod)},
		Log:             c.o.Logger, Tracer: c.tracer,
	})
	if err != nil {
		return err
	}
	return c.lead(ctx, set.Kube, "kube-controller-manager", nil, run.Parallel(manager.Run, func(ctx context.Context) error {
		return c.reconcilers(ctx, set)
	}))
}

// reconcilers runs the control loops of Wasm plugins.
func (c *component) reconcilers(ctx context.Context, own *client.Set) error {
	host, err := reconcilehost.New(reconcilehost.Config{
		ClientFor: func(namespace, name string) (dynamic.Interface, error) {
			cfg, err := c.identities.ForServiceAccount(namespace, name)
			if err != nil {
				return nil, err
			}
			set, err := client.New(cfg)
			if err != nil {
				return nil, err
			}
			return set.Dynamic, nil
		},
		Reader: own.Dynamic, Kube: own.Kube, Review: 3 * time.Second, Log: c.o.Logger, Tracer: c.tracer,
	})
	if err != nil {
		return err
	}
	running := map[string]controllers.Reconciler{}
	var mu sync.Mutex
	set := func() {
		mu.Lock()
		defer mu.Unlock()
		now := map[string]controllers.Reconciler{}
		for _, r := range c.plugins.reconcilers() {
			now[r.Name()] = r
			if running[r.Name()] == r {
				continue // the adapter follows its plugin's reloads by itself
			}
			if err := host.Set(r); err != nil {
				c.o.Logger.ErrorContext(ctx, "a reconciler cannot run", "plugin", r.Name(), "error", err)
			}
		}
		for name := range running {
			if now[name] == nil {
				host.Remove(name)
			}
		}
		running = now
	}
	defer c.plugins.onChange(set)()
	set()
	return host.Run(ctx)
}

// scheduler runs the scheduler while this process leads. It is ready when it has seen the
// cluster, or when another process leads: it may then wait for as long as that lives.
func (c *component) scheduler(ctx context.Context, ready func()) error {
	set, err := client.New(c.config)
	if err != nil {
		return err
	}
	return c.lead(ctx, set.Kube, "kube-scheduler", ready, func(ctx context.Context) error {
		c.catchingUp.Store(true)
		defer c.catchingUp.Store(false)
		inf := informers.NewSharedInformerFactory(set.Kube, 0)
		record, stop, err := c.recorders(ctx, set.Kube)
		if err != nil {
			return err
		}
		defer stop()
		s, err := scheduler.New(scheduler.Config{
			Client: set.Kube, Informers: inf, Profiles: c.profiles(set.Kube, inf), Events: record,
			Logger: c.o.Logger, Tracer: c.tracer, Metrics: c.metrics,
		})
		if err != nil {
			return err
		}
		defer c.plugins.onChange(func() {
			if err := s.SetProfiles(c.profiles(set.Kube, inf)); err != nil {
				c.o.Logger.ErrorContext(ctx, "the scheduler's profiles stay as they were", "error", err)
			}
		})()
		defer inf.Shutdown()
		inf.Start(ctx.Done())
		return run.Together(ctx, s.Run, func(ctx context.Context) error {
			if run.Await(ctx, s.Ready()) {
				c.catchingUp.Store(false)
				ready()
			}
			<-ctx.Done()
			return nil
		})
	})
}

// profiles are those of the configuration: every native plugin, then every Wasm
// plugin, less what a profile leaves out, with the weights that it gives.
func (c *component) profiles(kube kubernetes.Interface, inf informers.SharedInformerFactory) []scheduler.Profile {
	wasm := c.plugins.scheduling()
	// Every profile has plugins of its own: what they remember is of their profile.
	every := func(spread *config.TopologySpread) []scheduler.Weighted {
		patience := time.Duration(c.o.Config.Scheduler.VolumeBindingTimeout)
		return append(native.Default(native.Config{Client: kube, Informers: inf, Spread: defaultSpread(spread), VolumeTimeout: patience}), wasm...)
	}
	own, configured := &c.o.Config.Scheduler.TopologySpread, c.o.Config.Scheduler.Profiles
	if len(configured) == 0 {
		return []scheduler.Profile{{Name: corev1.DefaultSchedulerName, Plugins: every(own)}}
	}
	var out []scheduler.Profile
	for _, p := range configured {
		profile := scheduler.Profile{Name: p.Name, Plugins: every(cmp.Or(p.TopologySpread, own))}.Without(p.Disable)
		for i, w := range profile.Plugins {
			if weight, ok := p.Weights[w.Name()]; ok {
				profile.Plugins[i].Weight = weight
			}
		}
		out = append(out, profile)
	}
	return out
}

// defaultSpread are the constraints of pods that have none; nil = upstream's.
func defaultSpread(t *config.TopologySpread) []corev1.TopologySpreadConstraint {
	if t.DefaultingType != "List" {
		return nil
	}
	out := []corev1.TopologySpreadConstraint{}
	for _, c := range t.DefaultConstraints {
		out = append(out, corev1.TopologySpreadConstraint{
			MaxSkew: c.MaxSkew, TopologyKey: c.TopologyKey, WhenUnsatisfiable: corev1.UnsatisfiableConstraintAction(c.WhenUnsatisfiable),
		})
	}
	return out
}

// recorders make event recorders, one for each profile name.
func (c *component) recorders(ctx context.Context, kube kubernetes.Interface) (func(string) events.EventRecorder, func(), error) {
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

// component gives out a part of the server's own process, under its own identity.
func (s *server) component(ctx context.Context, p part) (*component, error) {
	return s.componentAs(ctx, p, p.identity(s.o.Config))
}

// componentAs gives out a part that works under another identity than the table's.
func (s *server) componentAs(ctx context.Context, p part, as pki.Identity) (*component, error) {
	tracer, err := s.spans.tracer(ctx, p.name)
	if err != nil {
		return nil, err
	}
	id := &user.DefaultInfo{Name: as.User, Groups: append(slices.Clone(as.Groups), user.AllAuthenticated)}
	return &component{
		o: s.o, config: client.InMemory(s.local, id, p.name),
		identities: client.InMemoryIdentities{Handler: s.local},
		tracer:     tracer, plugins: s.plugins, metrics: s.metrics,
	}, nil
}
