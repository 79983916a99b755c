// Package kubelet runs the pods that are bound to one node: it watches them,
// admits them, drives the runtime behind engine.Engine to what they ask for,
// and reports.
//
// A pod's life is decided by pod.Machine, which is pure; here each pod has one
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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/lease"
	"github.com/wasmplane/wasmplane/core/kubelet/logs"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/probe"
	"github.com/wasmplane/wasmplane/core/kubelet/pull"
	"github.com/wasmplane/wasmplane/core/kubelet/status"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/trace"
)

// Config of a Kubelet.
type Config struct {
	// NodeName under which it registers. Required.
	NodeName string
	// Client of the API, with the identity system:node:NodeName. Required.
	Client kubernetes.Interface
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
	// Feeds shared with other kubelets; nil: the kubelet has its own and runs them.
	Feeds *Feeds
	// Leases shared with other kubelets; nil: the kubelet has its own and runs it.
	Leases *lease.Keeper
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
	// SeccompRoot is where Localhost seccomp profiles are.
	SeccompRoot string
	// Delays of pods; zero values are upstream's.
	Delays pod.Options
	// Resync is how often everything is listed afresh (5 minutes if zero).
	Resync time.Duration
	// Upkeep is how often logs, images and shortages are looked at (10 s if zero).
	Upkeep time.Duration
	// LogRotation bounds what containers' logs take.
	LogRotation logs.Rotation
	// ImagesHigh and ImagesLow are how full the disk may be, in percent, before images
	// that nothing uses go, and how full it is then to be (85 and 80 if zero).
	ImagesHigh, ImagesLow uint64
	// ParallelPulls bounds pulls of images (5 if zero).
	ParallelPulls int
	Logger        *slog.Logger
	Tracer        oteltrace.Tracer
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
	if c.Upkeep <= 0 {
		c.Upkeep = tendEvery
	}
	return nil
}

// Kubelet of one node.
type Kubelet struct {
	cfg     Config
	log     *slog.Logger
	feeds   *Feeds
	leases  *lease.Keeper
	rec     record.EventRecorder
	writer  *status.Writer
	puller  *pull.Puller
	probes  *probe.Manager
	node    *node.Registrar
	ready   chan struct{}
	runtime string
	// adopted is what the runtime held at the start, by pod.
	mu       sync.Mutex
	adopted  map[types.UID]pod.Snapshot
	workers  map[types.UID]*worker
	admitted map[types.UID]*corev1.Pod
	wg       sync.WaitGroup
}

// New makes a kubelet; Run runs it.
func New(cfg Config) (*Kubelet, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	k := &Kubelet{
		cfg: cfg, log: cfg.Logger.With("node", cfg.NodeName), feeds: cfg.Feeds, leases: cfg.Leases,
		ready: make(chan struct{}), workers: map[types.UID]*worker{}, admitted: map[types.UID]*corev1.Pod{},
	}
	var err error
	if k.feeds == nil {
		if k.feeds, err = NewFeeds(cfg.Client, cfg.NodeName); err != nil {
			return nil, err
		}
	}
	if k.leases == nil {
		k.leases = lease.NewKeeper(lease.Config{Logger: cfg.Logger})
	}
	k.writer = status.NewWriter(cfg.Client, k.log, 0)
	k.puller = pull.New(cfg.Engine, cfg.ParallelPulls)
	k.probes = probe.NewManager(cfg.Handler, k.probed, k.tellProbe, k.log)
	nc := cfg.Node
	nc.Name, nc.Client, nc.Logger = cfg.NodeName, cfg.Client, k.log
	nc.Host, nc.Engine = cfg.Host, cfg.Engine
	if k.node, err = node.NewRegistrar(nc); err != nil {
		return nil, err
	}
	return k, nil
}

// Ready is closed once the node is registered and its pods are being looked after.
func (k *Kubelet) Ready() <-chan struct{} { return k.ready }

// NodeName of the node.
func (k *Kubelet) NodeName() string { return k.cfg.NodeName }

// Run looks after the node's pods until ctx ends, and leaves them running.
func (k *Kubelet) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer k.wg.Wait()
	defer cancel()
	k.recorder(ctx)
	if err := k.known(ctx); err != nil {
		return nil // ctx ended
	}
	if err := k.node.Register(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	failed := make(chan error, 1)
	start := func(what string, run func(context.Context) error) {
		k.wg.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				select {
				case failed <- fmt.Errorf("%s of node %s: %w", what, k.cfg.NodeName, err):
				default:
				}
			}
		})
	}
	if k.cfg.Feeds == nil {
		start("feeds", k.feeds.Run)
	}
	if k.cfg.Leases == nil {
		start("lease", k.leases.Run)
	}
	start("status writer", k.writer.Run)
	start("probes", k.probes.Run)
	start("node status", k.node.Run)
	start("upkeep", k.tend)
	stop := k.leases.Hold(k.cfg.NodeName, k.cfg.Client, k.node.UID())
	defer stop()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	case <-k.feeds.Synced():
	}
	start("runtime events", k.follow)
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

func (k *Kubelet) recorder(ctx context.Context) {
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: k.cfg.Client.CoreV1().Events("")})
	k.wg.Go(func() {
		<-ctx.Done()
		events.Shutdown()
	})
	k.rec = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: k.cfg.NodeName})
}

// follow keeps up with the runtime: its events, and when they break off, or
// after a long time, a list of everything.
func (k *Kubelet) follow(ctx context.Context) error {
	retry := run.Backoff{First: 50 * time.Millisecond, Longest: 10 * time.Second}
	first := true
	for ctx.Err() == nil {
		sub, cancel := context.WithCancel(ctx)
		ch, err := k.cfg.Engine.Events(sub)
		if err == nil {
			err = k.relist(ctx, first)
		}
		if err != nil {
			cancel()
			wait := retry.Next()
			k.log.WarnContext(ctx, "the container runtime does not answer; trying again", "error", err, "retryIn", wait)
			k.node.RuntimeFailed(err)
			if !run.Sleep(ctx, wait) {
				return nil
			}
			continue
		}
		k.node.RuntimeFailed(nil)
		if first {
			first = false
			k.feeds.follow(k.cfg.NodeName, follower{changed: func(p *corev1.Pod) { k.podChanged(ctx, p) }, gone: k.podGone})
			defer k.feeds.unfollow(k.cfg.NodeName)
			k.reap(ctx)
			close(k.ready)
		}
		retry.Reset()
		k.consume(ctx, ch)
		cancel()
	}
	return nil
}

// consume hands events to the pods that they are about until the channel breaks off.
func (k *Kubelet) consume(ctx context.Context, ch <-chan *cri.ContainerEventResponse) {
	t := time.NewTicker(k.cfg.Resync)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case ev, ok := <-ch:
			if !ok {
				return
			}
			k.runtimeEvent(ctx, ev)
		case <-t.C:
			if err := k.relist(ctx, false); err != nil {
				k.log.Warn("The container runtime cannot be listed", "error", err)
				return
			}
			k.reap(ctx)
		}
	}
}

func (k *Kubelet) runtimeEvent(ctx context.Context, ev *cri.ContainerEventResponse) {
	sb := ev.GetPodSandboxStatus()
	w := k.worker(uidOf(sb.GetLabels()))
	if w == nil {
		return
	}
	snap := pod.Snapshot{Sandboxes: []pod.Sandbox{sandboxOf(sb)}}
	for _, c := range ev.GetContainersStatuses() {
		snap.Containers = append(snap.Containers, k.container(ctx, w.identity(), c, sb.GetId()))
	}
	if ev.ContainerEventType == cri.ContainerEventType_CONTAINER_DELETED_EVENT {
		if ev.ContainerId != sb.GetId() {
			w.send(pod.Observed{Snapshot: snap})
		}
		w.send(pod.Deleted{ID: ev.ContainerId})
		return
	}
	w.send(pod.Observed{Snapshot: snap})
}

// container takes what the runtime says of a container, and what it left as its last words.
func (k *Kubelet) container(ctx context.Context, p *corev1.Pod, st *cri.ContainerStatus, sandbox string) pod.Container {
	c := containerOf(st, sandbox)
	if c.State == pod.Exited {
		if msg := k.cfg.Host.LastWords(ctx, p, st); msg != "" {
			if c.Message != "" {
				c.Message += ": "
			}
			c.Message += msg
		}
	}
	return c
}

func (k *Kubelet) worker(uid types.UID) *worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.workers[uid]
}

// relist asks the runtime for everything. The first time, what it holds is kept
// for the pods to come.
func (k *Kubelet) relist(ctx context.Context, first bool) error {
	since := time.Now()
	found, err := k.snapshots(ctx)
	if err != nil {
		return err
	}
	if first {
		k.mu.Lock()
		k.adopted = found
		k.mu.Unlock()
		return nil
	}
	k.mu.Lock()
	workers := make([]*worker, 0, len(k.workers))
	for _, w := range k.workers {
		workers = append(workers, w)
	}
	k.mu.Unlock()
	for _, w := range workers {
		w.send(pod.Observed{Snapshot: found[w.uid], Complete: true, Since: since})
	}
	return nil
}

// snapshots of all pods in the runtime.
func (k *Kubelet) snapshots(ctx context.Context) (map[types.UID]pod.Snapshot, error) {
	sandboxes, err := k.cfg.Engine.ListSandboxes(ctx)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := k.cfg.Engine.ListContainers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	out := map[types.UID]pod.Snapshot{}
	for _, sb := range sandboxes {
		uid := uidOf(sb.Labels)
		if uid == "" {
			continue // not a pod's
		}
		st, err := k.cfg.Engine.SandboxStatus(ctx, sb.Id)
		if err != nil {
			continue // gone meanwhile
		}
		s := out[uid]
		s.Sandboxes = append(s.Sandboxes, sandboxOf(st))
		out[uid] = s
	}
	for _, c := range containers {
		uid := uidOf(c.Labels)
		if uid == "" {
			continue
		}
		st, err := k.cfg.Engine.ContainerStatus(ctx, c.Id)
		if err != nil {
			continue
		}
		s := out[uid]
		s.Containers = append(s.Containers, k.container(ctx, k.podOf(uid, c.Labels), st, c.PodSandboxId))
		out[uid] = s
	}
	return out, nil
}

// podOf is the pod as it is known, or what a container's labels say of it.
func (k *Kubelet) podOf(uid types.UID, labels map[string]string) *corev1.Pod {
	if w := k.worker(uid); w != nil {
		return w.identity()
	}
	p := &corev1.Pod{}
	p.UID, p.Name, p.Namespace = uid, labels[pod.NameLabel], labels[pod.NamespaceLabel]
	return p
}

// podChanged takes a pod from the API.
func (k *Kubelet) podChanged(ctx context.Context, p *corev1.Pod) {
	k.writer.Seen(p)
	k.mu.Lock()
	w := k.workers[p.UID]
	if w != nil {
		k.mu.Unlock()
		k.cfg.Volumes.Update(p)
		w.send(pod.Updated{Pod: p})
		return
	}
	w = newWorker(k, p, k.adopted[p.UID])
	delete(k.adopted, p.UID)
	k.workers[p.UID] = w
	if s := w.machine.Stage(); s == pod.Syncing {
		k.admitted[p.UID] = p
	}
	k.mu.Unlock()
	k.wg.Go(func() { w.run(ctx) })
}

// podGone takes note that the API no longer has a pod.
func (k *Kubelet) podGone(p *corev1.Pod) {
	if w := k.worker(p.UID); w != nil {
		w.send(pod.Removed{Pod: p})
	}
}

// reap removes from the runtime, and from the machine, the pods that the API does not know.
func (k *Kubelet) reap(ctx context.Context) {
	found, err := k.snapshots(ctx)
	if err != nil {
		k.log.Warn("Orphaned pods cannot be looked for", "error", err)
		return
	}
	known := func(uid types.UID) bool { return k.worker(uid) != nil }
	for uid, snap := range found {
		if !known(uid) {
			k.log.Info("Removing a pod that the API does not know", "uid", uid)
			k.wg.Go(func() { k.remove(ctx, uid, snap) })
		}
	}
	left, err := k.cfg.Host.Claimed(ctx)
	if err != nil {
		k.log.Warn("Leftovers of pods cannot be looked for", "error", err)
	}
	for _, uid := range left {
		if _, runs := found[uid]; !runs && !known(uid) {
			k.wg.Go(func() { k.sweep(ctx, uid) })
		}
	}
}

func (k *Kubelet) remove(ctx context.Context, uid types.UID, snap pod.Snapshot) {
	const grace = 1
	var wg sync.WaitGroup
	for _, c := range snap.Containers {
		if c.State == pod.Running {
			wg.Go(func() {
				if err := k.cfg.Engine.StopContainer(ctx, c.ID, grace); err != nil && ctx.Err() == nil {
					k.log.Warn("A container of an orphaned pod cannot be stopped", "uid", uid, "container", c.ID, "error", err)
				}
			})
		}
	}
	wg.Wait()
	for _, sb := range snap.Sandboxes {
		err := k.cfg.Engine.StopSandbox(ctx, sb.ID)
		if err == nil {
			err = k.cfg.Engine.RemoveSandbox(ctx, sb.ID)
		}
		if err != nil {
			k.log.Warn("An orphaned sandbox cannot be removed; the next resync tries again", "uid", uid, "sandbox", sb.ID, "error", err)
			return
		}
	}
	if len(snap.Sandboxes) == 0 {
		for _, c := range snap.Containers {
			if err := k.cfg.Engine.RemoveContainer(ctx, c.ID); err != nil {
				k.log.Warn("An orphaned container cannot be removed; the next resync tries again", "uid", uid, "container", c.ID, "error", err)
			}
		}
	}
	k.sweep(ctx, uid)
}

// sweep removes what a pod left on the machine.
func (k *Kubelet) sweep(ctx context.Context, uid types.UID) {
	err := k.cfg.Volumes.Unmount(ctx, uid)
	if err == nil {
		err = k.cfg.Host.Release(ctx, uid)
	}
	if err == nil {
		err = k.cfg.Host.Erase(ctx, uid)
	}
	if err != nil && ctx.Err() == nil {
		k.log.Warn("Leftovers of a pod cannot be removed; the next resync tries again", "uid", uid, "error", err)
	}
}

// probed takes a probe's verdict.
func (k *Kubelet) probed(uid types.UID, ev pod.Probed) {
	if w := k.worker(uid); w != nil {
		w.send(ev)
	}
}

// span begins a span about a pod.
func (k *Kubelet) span(ctx context.Context, name string, p *corev1.Pod, attrs ...attribute.KeyValue) (context.Context, oteltrace.Span) {
	attrs = append(attrs, trace.ComponentKey.String("kubelet"), trace.NodeKey.String(k.cfg.NodeName))
	for _, o := range p.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			attrs = append(attrs, trace.OwnerUIDKey.String(string(o.UID)))
		}
	}
	return k.cfg.Tracer.Start(ctx, name, trace.Object("Pod", p.Namespace, p.Name, p.UID), oteltrace.WithAttributes(attrs...))
}
