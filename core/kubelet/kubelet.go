// SPDX-License-Identifier: Apache-2.0

// Package kubelet runs the pods that are bound to one node: it watches them,
// admits them, drives the runtime behind engine.Engine to what they ask for,
// and reports.
//
// A pod's life is decided by podlifecycle.Machine, which is pure; here each pod has one
// goroutine that feeds its Machine with events and starts the actions that it
// answers. Everything is driven by events of the API, the runtime, probes and
// timers; a slow resync is the net under them. Nothing is kept on disk that the
// API and the runtime do not also know: a kubelet that starts adopts what runs.
//
// Stopping the kubelet leaves pods running.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typednodev1 "k8s.io/client-go/kubernetes/typed/node/v1"
	"k8s.io/client-go/tools/record"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/deviceplugin"
	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/feeds"
	"github.com/wasmplane/wasmplane/core/kubelet/fit"
	"github.com/wasmplane/wasmplane/core/kubelet/hostview"
	"github.com/wasmplane/wasmplane/core/kubelet/lease"
	"github.com/wasmplane/wasmplane/core/kubelet/leftover"
	"github.com/wasmplane/wasmplane/core/kubelet/logs"
	"github.com/wasmplane/wasmplane/core/kubelet/mirror"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podevents"
	"github.com/wasmplane/wasmplane/core/kubelet/podimage"
	"github.com/wasmplane/wasmplane/core/kubelet/podlifecycle"
	"github.com/wasmplane/wasmplane/core/kubelet/podmetrics"
	"github.com/wasmplane/wasmplane/core/kubelet/probe"
	"github.com/wasmplane/wasmplane/core/kubelet/pull"
	"github.com/wasmplane/wasmplane/core/kubelet/recorder"
	"github.com/wasmplane/wasmplane/core/kubelet/rounds"
	"github.com/wasmplane/wasmplane/core/kubelet/status"
	"github.com/wasmplane/wasmplane/core/kubelet/upkeep"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/trace"
)

// Client of the API, as far as a kubelet needs it.
type Client interface {
	CoreV1() typedcorev1.CoreV1Interface
	CoordinationV1() typedcoordinationv1.CoordinationV1Interface
	NodeV1() typednodev1.NodeV1Interface
}

// Config of a Kubelet.
type Config struct {
	// NodeName under which it registers. Required.
	NodeName string
	// Client of the API, with the identity system:node:NodeName. Required.
	Client Client
	// Engine runs containers. Required.
	Engine engine.Engine
	// Host, Volumes and Handler (of probes and hooks) are the node's. Required.
	Host    Host
	Volumes Volumes
	Handler probe.Handler
	// Admitters are asked in order, after the node's own checks.
	Admitters []Admitter
	// Objects that the pods refer to; run elsewhere. Required.
	Objects Objects
	// Static are the pods that the node runs from files; nil: none.
	Static StaticPods
	// Devices of the node's device plugins; nil: none.
	Devices Devices
	// Health of the devices that pods have, by who gives them; nil: nobody knows.
	Health []DeviceHealth
	// Credentials of images that the pods' secrets do not have; nil: none.
	Credentials podimage.Credentials
	// Feeds shared with other kubelets; nil: the kubelet has its own and runs them.
	Feeds *feeds.Feeds
	// Leases shared with other kubelets; nil: the kubelet has its own and runs it.
	Leases *lease.Keeper
	// Rounds shared with other kubelets; nil: the kubelet has its own and runs them.
	Rounds *rounds.Rounds
	// Events records events, as those of the kubelet of NodeName; nil: by Client.
	Events record.EventRecorder
	// Node describes the node to register.
	Node node.Config
	// ClusterDNS are the addresses of the cluster's DNS; ClusterDomain its domain ("cluster.local").
	ClusterDNS    []string
	ClusterDomain string
	// HostResolv is the node's own resolver configuration, for pods that ask for it.
	HostResolv *cri.DNSConfig
	// ReservedTCPPorts are the node's own (the API's, the kubelet's, ssh): a pod that
	// wants one as its hostPort is refused.
	ReservedTCPPorts []int32
	// ReservedUDPPorts are the same of UDP: those of the network between nodes.
	ReservedUDPPorts []int32
	// SeccompRoot is where Localhost seccomp profiles are.
	SeccompRoot string
	// Delays of pods; zero values are upstream's.
	Delays podlifecycle.Options
	// Resync is how often everything is listed afresh (5 minutes if zero).
	Resync time.Duration
	// Upkeep is how often logs, images and shortages are looked at (10 s if zero).
	Upkeep time.Duration
	// Metrics count what the kubelet does with pods; nil: nobody does. Kubelets of one process may share them.
	Metrics *podmetrics.Metrics
	// LogRotation bounds what containers' logs take.
	LogRotation logs.Rotation
	// Images says when images go that nothing uses.
	Images pull.Limits
	// ParallelPulls bounds pulls of images (5 if zero).
	ParallelPulls int
	// ParallelSandboxes bounds the sandboxes that are made at the same time (zero: there is no bound). Many at once take each other
	// the processor, until steps of all of them take too long and are given up.
	ParallelSandboxes int
	Logger            *slog.Logger
	Tracer            oteltrace.Tracer
}

func (c *Config) check() error {
	switch {
	case c.NodeName == "":
		return errors.New("kubelet: NodeName is empty")
	case c.Client == nil:
		return errors.New("kubelet: Client is missing")
	case c.Engine == nil:
		return errors.New("kubelet: Engine is missing")
	case c.Host == nil, c.Volumes == nil, c.Handler == nil, c.Objects == nil:
		return errors.New("kubelet: Host, Volumes, Handler or Objects is missing")
	}
	if c.Devices == nil {
		c.Devices = deviceplugin.None{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Tracer == nil {
		c.Tracer = trace.Discard()
	}
	if c.ClusterDomain == "" {
		c.ClusterDomain = "cluster.local"
	}
	if c.Resync <= 0 {
		c.Resync = slowResync
	}
	return nil
}

// parallel is how many steps of a kubelet of its own are done at a time: some measure disks for a while.
const parallel = 8

// slowResync is the net under events: so often all is listed afresh.
const slowResync = 5 * time.Minute

// Kubelet of one node.
type Kubelet struct {
	*parts
	hostview.View
	leases *lease.Keeper
	rounds *rounds.Rounds
	left   *leftover.Finder
	upkeep *upkeep.Keeper
	ready  chan struct{}
	// joined is closed once the node is registered and its feeds have all that there was.
	joined chan struct{}
	// following the API's pods; of the goroutine that follows the runtime.
	following bool

	mu sync.Mutex
	// adopted is what the runtime holds of pods that have not come yet.
	adopted map[types.UID]pod.Snapshot
	workers map[types.UID]*worker
	static  statics
	mirrors *mirror.Keeper
}

// New makes a kubelet; Run runs it.
func New(cfg Config) (*Kubelet, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	k := &Kubelet{
		parts: &parts{
			Recorder: &podevents.Recorder{Node: cfg.NodeName, Tracer: cfg.Tracer},
			cfg:      cfg, log: cfg.Logger.With("node", cfg.NodeName), feeds: cfg.Feeds,
			room: fit.NewRoom(cfg.ReservedTCPPorts, cfg.ReservedUDPPorts),
		},
		leases: cfg.Leases, rounds: cfg.Rounds, ready: make(chan struct{}), joined: make(chan struct{}), workers: map[types.UID]*worker{},
		static: newStatics(),
	}
	if cfg.ParallelSandboxes > 0 {
		k.turns = semaphore.NewWeighted(int64(cfg.ParallelSandboxes))
	}
	k.View = hostview.View{Host: cfg.Host, Log: k.log}
	k.left = &leftover.Finder{
		Engine: cfg.Engine, Machine: cfg.Host, Unmount: cfg.Volumes.Unmount, Container: k.container, Pod: k.known, Tasks: &k.tasks, Logger: k.log,
	}
	var err error
	if k.feeds == nil {
		if k.feeds, err = feeds.New(cfg.Client, cfg.NodeName); err != nil {
			return nil, err
		}
	}
	if k.leases == nil {
		k.leases = lease.NewKeeper(lease.Config{Logger: cfg.Logger})
	}
	if k.rounds == nil {
		k.rounds = rounds.New(parallel)
	}
	k.mirrors = mirror.New(mirror.Config{
		Client: cfg.Client, Node: func() types.UID { return k.node.UID() }, Pods: k.staticPods, Known: k.mirrored, Logger: k.log,
	})
	k.writer = status.NewWriter(cfg.Client, k.log, 0)
	k.images = &podimage.Images{
		Engine: cfg.Engine, Puller: pull.New(cfg.Engine, cfg.ParallelPulls), Objects: cfg.Objects, Credentials: cfg.Credentials,
		Events: k.Recorder, Log: k.log,
	}
	k.probes = probe.NewManager(cfg.Handler, k.probed, k.probeEvent, k.log)
	k.upkeep = upkeep.New(upkeep.Config{
		Pods: population{k}, Engine: cfg.Engine, Host: cfg.Host, Volumes: cfg.Volumes, Every: cfg.Upkeep, Rotation: cfg.LogRotation,
		Images: cfg.Images, Metrics: cfg.Metrics, Logger: k.log,
	})
	nc := cfg.Node
	nc.Name, nc.Client, nc.Logger = cfg.NodeName, cfg.Client, k.log
	nc.Host, nc.Engine, nc.Resources, nc.Seen = cfg.Host, cfg.Engine, k.cfg.Devices.Resources, k.feeds.Node
	if k.node, err = node.NewRegistrar(nc); err != nil {
		return nil, err
	}
	return k, nil
}

// Ready is closed once the node is registered and its pods are being looked after.
func (k *Kubelet) Ready() <-chan struct{} { return k.ready }

// NodeName of the node.
func (k *Kubelet) NodeName() string { return k.cfg.NodeName }

// Run looks after the node's pods until ctx ends, and leaves them running. Pods of files
// are looked after at once, those of the API when the node is registered.
func (k *Kubelet) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer k.tasks.Wait()
	defer cancel()
	if k.Events = k.cfg.Events; k.Events == nil {
		k.Events = recorder.New(ctx, k.cfg.Client.CoreV1(), k.cfg.NodeName, &k.tasks)
	}
	if err := k.awaitRuntime(ctx); err != nil {
		return nil // ctx ended
	}
	failed := make(chan error, 1)
	start := func(what string, run func(context.Context) error) {
		k.tasks.Go("kubelet: "+what, func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				select {
				case failed <- fmt.Errorf("%s of node %s: %w", what, k.cfg.NodeName, err):
				default:
				}
			}
		})
	}
	if k.cfg.Static != nil {
		if err := k.node.Look(ctx); err != nil {
			k.log.WarnContext(ctx, "the machine cannot be looked at; its registration tries again", "error", err)
		}
	}
	k.writer.Join(ctx, k.rounds)
	k.probes.Join(ctx, k.rounds)
	k.upkeep.Join(ctx, k.rounds)
	if k.cfg.Rounds == nil {
		start("rounds", k.rounds.Run)
	}
	for _, of := range k.cfg.Health {
		start("health of devices", func(ctx context.Context) error { return k.followHealth(ctx, of) })
	}
	start("runtime events", k.follow)
	start("registration", func(ctx context.Context) error { return k.join(ctx, start) })
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// join registers the node, and has its status and its lease kept until ctx ends.
func (k *Kubelet) join(ctx context.Context, start func(string, func(context.Context) error)) error {
	if err := k.node.Register(ctx, k.rounds); err != nil {
		return err
	}
	if k.cfg.Feeds == nil {
		start("feeds", k.feeds.Run)
	}
	if k.cfg.Leases == nil {
		start("lease", k.leases.Run)
	}
	k.node.Join(ctx, k.rounds)
	context.AfterFunc(ctx, k.leases.Hold(k.cfg.NodeName, k.cfg.Client, k.node.UID))
	if run.Await(ctx, k.feeds.Synced()) {
		close(k.joined)
	}
	return nil
}
