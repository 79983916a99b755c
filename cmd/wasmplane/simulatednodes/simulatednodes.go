// SPDX-License-Identifier: Apache-2.0

// Package simulatednodes assembles the simulated nodes of a process: as many kubelets as asked for, which share their
// clients, their informers, the keeper of their leases and one server.
package simulatednodes

import (
	"context"
	"fmt"
	"net"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typednodev1 "k8s.io/client-go/kubernetes/typed/node/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/version"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/bootstrap/roles"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/feeds"
	"github.com/wasmplane/wasmplane/core/kubelet/lease"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/objects"
	"github.com/wasmplane/wasmplane/core/kubelet/podmetrics"
	"github.com/wasmplane/wasmplane/core/kubelet/rounds"
	kubeletserver "github.com/wasmplane/wasmplane/core/kubelet/server"
	"github.com/wasmplane/wasmplane/core/kubelet/simulated"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
)

// Simulation is the simulated nodes of this process. They are the one kubelet; only
// engine, machine, volumes and probes are simulations.
type Simulation struct {
	local process.Local
	feeds *feeds.Feeds
	nodes []*kubelet.Kubelet
	held  []*objects.Store
	keep  *lease.Keeper
	turns *rounds.Rounds // what the nodes do now and then
	// events of all nodes have one broadcaster, whose queues would be most of what a node takes.
	events *recorded
	door   *kubeletserver.Server // one for all nodes
	ready  chan struct{}
	// measured is what all nodes did.
	measured *podmetrics.Metrics
}

// atOnce bounds what simulated nodes do at a time beside their pods: registrations, statuses.
const atOnce = 32

// LeasesAtOnce bounds how many leases are renewed at a time. All of them have to be every 10 s, also where a busy
// server takes a quarter of a second for each: nodes that are not in time are taken to be silent, which makes more work.
func LeasesAtOnce(nodes int) int { return max(atOnce, nodes/25) }

// Simulate makes n simulated nodes, whose server's certificate is of authority.
func Simulate(ctx context.Context, local process.Local, authority *pki.Authority, n int) (*Simulation, error) {
	reader, err := local.As(ctx, process.Parts.Kubelet, pki.Identity{User: roles.SimulatedNodes().GetName()})
	if err != nil {
		return nil, err
	}
	set, err := client.New(reader.Config)
	if err != nil {
		return nil, err
	}
	sim := &Simulation{
		local: local, keep: lease.NewKeeper(lease.Config{Logger: local.Options.Logger, Parallel: LeasesAtOnce(n)}), turns: rounds.New(atOnce),
		events: newRecorded(ctx), ready: make(chan struct{}), measured: podmetrics.New(),
	}
	if sim.feeds, err = feeds.New(set.Kube, ""); err != nil {
		return nil, err
	}
	pods, err := config.ParseNetworks(local.Options.Config.Cluster.PodCIDR)
	if err != nil {
		return nil, fmt.Errorf("cluster.podCIDR: %w", err)
	}
	network, err := simulated.NewNetwork(pods...)
	if err != nil {
		return nil, err
	}
	if sim.door, err = simulatedDoor(ctx, local, authority, sim.measured); err != nil {
		return nil, err
	}
	for i := range n {
		if err := sim.add(ctx, fmt.Sprintf("simulated-%d", i+1), network); err != nil {
			return nil, err
		}
	}
	return sim, nil
}

// Name says for people how many nodes there are.
func (sim *Simulation) Name() string {
	if len(sim.nodes) == 1 {
		return "1 simulated node"
	}
	return fmt.Sprintf("%d simulated nodes", len(sim.nodes))
}

// Ready is closed when all nodes follow the API.
func (sim *Simulation) Ready() <-chan struct{} { return sim.ready }

func (sim *Simulation) add(ctx context.Context, name string, network *simulated.Network) error {
	c, err := sim.local.As(ctx, process.Parts.Kubelet, pki.Node(name))
	if err != nil {
		return err
	}
	set, err := newNodeClient(c.Config)
	if err != nil {
		return err
	}
	sim.events.add(name, set)
	eng, err := simulated.New(simulated.Config{Network: network})
	if err != nil {
		return err
	}
	held := objects.NewUnmounted(set, c.Options.Logger)
	k, err := kubelet.New(kubelet.Config{
		NodeName: name, Client: set, Engine: eng, Rounds: sim.turns, Events: sim.events.of(name),
		Host:    simulated.NewHost(simulated.HostConfig{Name: name, Address: "127.0.0.1", Version: version.Get().GitVersion, Engine: eng}),
		Volumes: simulated.Volumes{}, Handler: simulated.Handler{}, Admitters: c.Plugins.NodeAdmitters(),
		Objects: held, Feeds: sim.feeds, Leases: sim.keep, Metrics: sim.measured,
		Node:          node.Config{Labels: map[string]string{"wasmplane.dev/simulated": "true"}, Port: sim.door.Port()},
		ClusterDomain: c.Options.Config.Cluster.Domain, Logger: c.Options.Logger, Tracer: c.Tracer,
	})
	if err != nil {
		return err
	}
	sim.door.Add(k)
	sim.nodes, sim.held = append(sim.nodes, k), append(sim.held, held)
	return nil
}

// Run runs all nodes until ctx ends.
func (sim *Simulation) Run(ctx context.Context) error {
	parts := []func(context.Context) error{sim.feeds.Run, sim.keep.Run, sim.turns.Run, sim.door.Run, sim.events.Run}
	var ready []<-chan struct{}
	for i, k := range sim.nodes {
		sim.held[i].Join(ctx, sim.turns)
		parts = append(parts, k.Run)
		ready = append(ready, k.Ready())
	}
	parts = append(parts, func(ctx context.Context) error {
		if run.Await(ctx, ready...) {
			close(sim.ready)
		}
		<-ctx.Done()
		return nil
	})
	return run.Parallel(parts...)(ctx)
}

// simulatedDoor is the server of all simulated kubelets: a request names a pod, and
// the pod is on one of them. It asks the API, as the first node, who may enter.
func simulatedDoor(
	ctx context.Context,
	local process.Local,
	authority *pki.Authority,
	measured *podmetrics.Metrics,
) (*kubeletserver.Server, error) {
	c, err := local.As(ctx, process.Parts.Kubelet, pki.Node("simulated-1"))
	if err != nil {
		return nil, err
	}
	set, err := client.New(c.Config)
	if err != nil {
		return nil, err
	}
	serving, err := authority.KubeletServing("simulated-1", "127.0.0.1")
	if err != nil {
		return nil, err
	}
	authenticate, authorize, err := kubeletserver.Delegate(set.Kube, authority.Roots)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the kubelets' server: %w", err)
	}
	return kubeletserver.New(kubeletserver.Config{
		Listener: listener, TLS: pki.ServerTLS(serving), Authenticator: authenticate, Authorizer: authorize, Logger: c.Options.Logger,
		Metrics: measured.Gatherer(),
	})
}

// nodeClient is a node's client of the API groups that a kubelet uses. A client of all groups takes ten times as much, and
// there may be thousands of nodes.
type nodeClient struct {
	core         typedcorev1.CoreV1Interface
	coordination typedcoordinationv1.CoordinationV1Interface
	node         typednodev1.NodeV1Interface
}

func newNodeClient(cfg *rest.Config) (*nodeClient, error) {
	cfg = client.Newest(cfg)
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	core, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a node's client: %w", err)
	}
	coordination, err := typedcoordinationv1.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a node's client: %w", err)
	}
	node, err := typednodev1.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a node's client: %w", err)
	}
	return &nodeClient{core, coordination, node}, nil
}

// CoreV1 implements kubelet.Client.
func (c *nodeClient) CoreV1() typedcorev1.CoreV1Interface { return c.core }

// CoordinationV1 implements kubelet.Client.
func (c *nodeClient) CoordinationV1() typedcoordinationv1.CoordinationV1Interface {
	return c.coordination
}

// NodeV1 implements kubelet.Client.
func (c *nodeClient) NodeV1() typednodev1.NodeV1Interface { return c.node }

// recorded has the events of many nodes recorded, each with its own node's identity.
type recorded struct {
	from record.EventBroadcaster

	mu sync.Mutex
	by map[string]typedcorev1.EventsGetter // by node
}

func newRecorded(ctx context.Context) *recorded {
	return &recorded{from: record.NewBroadcaster(record.WithContext(ctx)), by: map[string]typedcorev1.EventsGetter{}}
}

func (r *recorded) add(node string, client *nodeClient) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.by[node] = client.core
}

// of records as the kubelet of a node.
func (r *recorded) of(node string) record.EventRecorder {
	return r.from.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: node})
}

// Run writes events until ctx ends.
func (r *recorded) Run(ctx context.Context) error {
	defer r.from.StartRecordingToSink(r).Stop()
	<-ctx.Done()
	r.from.Shutdown()
	return nil
}

// sink of an event is its node's.
func (r *recorded) sink(e *corev1.Event) (record.EventSink, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	by := r.by[e.Source.Host]
	if by == nil {
		return nil, fmt.Errorf("an event of node %q, which is none of this process", e.Source.Host)
	}
	return &typedcorev1.EventSinkImpl{Interface: by.Events("")}, nil
}

// Create implements record.EventSink.
func (r *recorded) Create(e *corev1.Event) (*corev1.Event, error) {
	sink, err := r.sink(e)
	if err != nil {
		return nil, err
	}
	return sink.Create(e)
}

// Update implements record.EventSink.
func (r *recorded) Update(e *corev1.Event) (*corev1.Event, error) {
	sink, err := r.sink(e)
	if err != nil {
		return nil, err
	}
	return sink.Update(e)
}

// Patch implements record.EventSink.
func (r *recorded) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	sink, err := r.sink(e)
	if err != nil {
		return nil, err
	}
	return sink.Patch(e, patch)
}
