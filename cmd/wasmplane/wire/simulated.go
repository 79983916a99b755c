// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"k8s.io/component-base/version"

	"github.com/wasmplane/wasmplane/core/bootstrap"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/lease"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/objects"
	kubeletserver "github.com/wasmplane/wasmplane/core/kubelet/server"
	"github.com/wasmplane/wasmplane/core/kubelet/simulated"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
)

// simulation is the simulated nodes of this process.
type simulation struct {
	s     *server
	feeds *kubelet.Feeds
	nodes []*kubelet.Kubelet
	held  []*objects.Store
	keep  *lease.Keeper
	door  *kubeletserver.Server // one for all nodes
}

// addSimulated adds n simulated nodes. They are the one kubelet; only engine,
// machine, volumes and probes are simulations.
func (s *server) addSimulated(ctx context.Context, g *run.Group, n int) (string, error) {
	reader, err := s.componentAs(ctx, parts.kubelet, pki.Identity{User: bootstrap.SimulatedNodes().GetName()})
	if err != nil {
		return "", err
	}
	set, err := client.New(reader.config)
	if err != nil {
		return "", err
	}
	sim := &simulation{s: s, keep: lease.NewKeeper(lease.Config{Logger: s.o.Logger})}
	if sim.feeds, err = kubelet.NewFeeds(set.Kube, ""); err != nil {
		return "", err
	}
	if sim.door, err = s.simulatedDoor(ctx); err != nil {
		return "", err
	}
	pods, err := netip.ParsePrefix(s.o.Config.Cluster.PodCIDR)
	if err != nil {
		return "", fmt.Errorf("cluster.podCIDR: %w", err)
	}
	network, err := simulated.NewNetwork(pods)
	if err != nil {
		return "", err
	}
	for i := range n {
		if err := sim.add(ctx, fmt.Sprintf("simulated-%d", i+1), network); err != nil {
			return "", err
		}
	}
	ready := make(chan struct{})
	g.Add(run.Unit{Name: fmt.Sprintf("%d simulated nodes", n), Ready: ready, Run: func(ctx context.Context) error {
		return sim.run(ctx, ready)
	}})
	if n == 1 {
		return "1 simulated node", nil
	}
	return fmt.Sprintf("%d simulated nodes", n), nil
}

func (sim *simulation) add(ctx context.Context, name string, network *simulated.Network) error {
	s := sim.s
	c, err := s.componentAs(ctx, parts.kubelet, pki.Node(name))
	if err != nil {
		return err
	}
	set, err := client.New(c.config)
	if err != nil {
		return err
	}
	eng, err := simulated.New(simulated.Config{Network: network})
	if err != nil {
		return err
	}
	held := objects.New(set.Kube, s.o.Logger)
	k, err := kubelet.New(kubelet.Config{
		NodeName: name, Client: set.Kube, Engine: eng,
		Host:    simulated.NewHost(simulated.HostConfig{Name: name, Address: "127.0.0.1", Version: version.Get().GitVersion, Engine: eng}),
		Volumes: simulated.Volumes{}, Handler: simulated.Handler{}, Admitters: s.plugins.nodeAdmitters(),
		Objects: held, Feeds: sim.feeds, Leases: sim.keep,
		Node:          node.Config{Labels: map[string]string{"wasmplane.dev/simulated": "true"}, Port: sim.door.Port()},
		ClusterDomain: s.o.Config.Cluster.Domain, Logger: s.o.Logger, Tracer: c.tracer,
	})
	if err != nil {
		return err
	}
	sim.door.Add(k)
	sim.nodes, sim.held = append(sim.nodes, k), append(sim.held, held)
	return nil
}

func (sim *simulation) run(ctx context.Context, ready chan<- struct{}) error {
	parts := []func(context.Context) error{sim.feeds.Run, sim.keep.Run, sim.door.Run}
	for i := range sim.nodes {
		parts = append(parts, sim.nodes[i].Run, sim.held[i].Run)
	}
	parts = append(parts, func(ctx context.Context) error {
		for _, k := range sim.nodes {
			select {
			case <-k.Ready():
			case <-ctx.Done():
				return nil
			}
		}
		close(ready)
		<-ctx.Done()
		return nil
	})
	return run.Parallel(parts...)(ctx)
}

// simulatedDoor is the server of all simulated kubelets: a request names a pod, and
// the pod is on one of them. It asks the API, as the first node, who may enter.
func (s *server) simulatedDoor(ctx context.Context) (*kubeletserver.Server, error) {
	c, err := s.componentAs(ctx, parts.kubelet, pki.Node("simulated-1"))
	if err != nil {
		return nil, err
	}
	set, err := client.New(c.config)
	if err != nil {
		return nil, err
	}
	serving, err := s.authority.KubeletServing("simulated-1", "127.0.0.1")
	if err != nil {
		return nil, err
	}
	authenticate, authorize, err := kubeletserver.Delegate(set.Kube, s.authority.CAPEM())
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the kubelets' server: %w", err)
	}
	return kubeletserver.New(kubeletserver.Config{
		Listener: listener, TLS: pki.ServerTLS(serving), Authenticator: authenticate, Authorizer: authorize, Logger: s.o.Logger,
	})
}
