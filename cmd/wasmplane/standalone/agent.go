// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/carry"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/certwatch"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/join/balance"
	"github.com/wasmplane/wasmplane/core/run"
)

// Agent runs this machine, which has joined, as a worker: kubelet, service proxy and DNS
// in one process under the node's identity, through whichever server lives.
func Agent(ctx context.Context, o process.Options, ready func(process.Info)) error {
	m, err := join.Read(o.Dir.Member())
	if err != nil {
		return err
	}
	if err := join.Ended(ctx, o.Dir.Member(), time.Now); err != nil {
		return err
	}
	servers := serversOf(o.Dir, m, o.Logger)
	if m, err = m.Refresh(ctx, o.Dir.Member(), memberVia(o.Dir, m, servers)); err != nil {
		return err
	}
	o.Config = m.Configure(o.Config)
	if o.Config.Node.CRIEndpoint == "" {
		if err := machine.RequireHost(ctx, o.Config); err != nil {
			return err
		}
	}
	o.API = memberVia(o.Dir, m, servers)
	// Known before anything is put on this host, so that `down` can take it away again.
	if err := machine.WriteState(o, "https://"+m.Server); err != nil {
		return err
	}
	var here *machine.Node // once it is ready
	return process.Run(ctx, o, process.Parts.Kubelet, func(ctx context.Context, c *process.Component, ready func()) error {
		return work(ctx, c, m, servers, func(n *machine.Node) {
			here = n
			ready()
		})
	}, func(i process.Info) {
		i.Cluster, i.Nodes, i.Healthy = m.Cluster, "node "+m.Node, here.Answers
		ready(i)
	})
}

// work runs the parts of a worker.
func work(ctx context.Context, c *process.Component, m join.Member, servers *balance.Balancer, ready func(*machine.Node)) error {
	o := c.Options
	set, err := client.New(c.Config)
	if err != nil {
		return err
	}
	renewal, err := join.RenewClient(o.Dir.Member(), m, set.Kube, o.Logger)
	if err != nil {
		return err
	}
	n, err := machine.NewNode(c, machine.SignedByCluster(o.Dir.Member(), c.Config, o.Logger))
	if err != nil {
		return err
	}
	net, err := machine.NewNetworking(c, nil)
	if err != nil {
		return err
	}
	certificates := &certwatch.Watch{Dir: o.Dir, Node: m.Node, Kube: set.Kube, Log: o.Logger}
	if err := c.Metrics.Register(certificates); err != nil {
		return err
	}
	parts := []func(context.Context) error{
		certificates.Run, n.Run, net.Proxy, net.Status, net.DNS, renewal.Run, archives(o, m, servers),
		func(ctx context.Context) error { return servers.Follow(ctx, set.Kube) },
		join.FollowAuthority(o.Dir.Member(), m, set.Kube, o.Logger),
		workerClock(o, m, c.Config, set.Kube),
		func(ctx context.Context) error { return join.Watch(ctx, m, set.Kube, o.Logger) },
		whenReady(func() { ready(n) }, n.Ready(), net.ProxyReady(), net.DNSReady()),
	}
	if o.Config.Node.CRIEndpoint == "" {
		parts = append(parts, n.RunRuntime)
	}
	return run.Parallel(parts...)(ctx)
}

// archives takes over those that the servers have.
func archives(o process.Options, m join.Member, servers *balance.Balancer) func(context.Context) error {
	return func(ctx context.Context) error {
		return carry.Follow(ctx, o, func(context.Context) ([]string, error) { return servers.Servers(), nil },
			func() (*rest.Config, error) { return m.Client(o.Dir.Member()), nil })
	}
}

// Member is how a machine that has joined reaches the API, as its node.
func Member(dir datadir.Dir, m join.Member) *rest.Config {
	return memberVia(dir, m, serversOf(dir, m, slog.New(slog.DiscardHandler)))
}

func memberVia(dir datadir.Dir, m join.Member, servers *balance.Balancer) *rest.Config {
	cfg := m.Client(dir.Member())
	cfg.Dial = servers.DialContext
	return cfg
}

func serversOf(dir datadir.Dir, m join.Member, log *slog.Logger) *balance.Balancer {
	return balance.New(balance.Config{File: filepath.Join(dir.Member(), "servers.json"), First: m.Server, Log: log})
}
