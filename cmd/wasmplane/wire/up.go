// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"sync"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/control"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/simulatednodes"
	"github.com/wasmplane/wasmplane/core/api/satoken"
	"github.com/wasmplane/wasmplane/core/bootstrap/roles"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/run"
)

// Up runs a whole cluster in this process until ctx ends.
func Up(ctx context.Context, o Options, ready func(Info)) error {
	mode := o.Config.Node.Mode
	if mode.Real && o.Config.Node.CRIEndpoint == "" {
		if err := machine.RequireHost(ctx, o.Config); err != nil {
			return err
		}
	}
	s, err := newServer(ctx, o, nil)
	if err != nil {
		return err
	}
	// Known before anything is put on this host, so that `down` can take it away
	// again, however the start ends.
	if err := s.WriteState("starting"); err != nil {
		return errors.Join(err, s.storage.closeAll())
	}
	g := s.group
	nodes, err := s.assemble(ctx, g, mode)
	if err != nil {
		return errors.Join(err, s.storage.closeAll())
	}
	return g.Run(ctx, func() {
		if err := s.Publish(nodes); err != nil {
			o.Logger.ErrorContext(ctx, "the cluster runs, but its kubeconfig could not be written", "error", err)
			o.Inform("error: " + err.Error())
		}
		ready(Info{Cluster: o.Config.Cluster.Name, Server: s.URL(), Nodes: nodes, Healthy: s.Answers})
	})
}

// assemble adds every part of the cluster to g, in the order of start, and says in
// words which nodes there are.
func (s *server) assemble(ctx context.Context, g *run.Group, mode config.NodeMode) (string, error) {
	parts := s.components()
	var here *machine.Node
	if mode.Real {
		var err error
		if here, err = s.addRuntime(ctx, g, parts); err != nil {
			return "", err
		}
	}
	for _, u := range s.units() {
		g.Add(u)
	}
	if err := s.addControl(ctx, g, parts); err != nil {
		return "", err
	}
	switch {
	case mode.Real:
		g.Add(run.Unit{Name: "node " + s.Options.Config.Node.Name, Run: here.Run, Ready: here.Ready()})
		if err := addNetworking(ctx, g, parts); err != nil {
			return "", err
		}
		return datadir.RealNode(s.Options.Config.Node.Name), nil
	case mode.Simulated > 0:
		sim, err := simulatednodes.Simulate(ctx, parts, s.Authority, mode.Simulated)
		if err != nil {
			return "", err
		}
		g.Add(run.Unit{Name: sim.Name(), Run: sim.Run, Ready: sim.Ready()})
		return sim.Name(), nil
	}
	return "no nodes", nil
}

// addRuntime adds the runtime of this machine's node. It starts first of all, side
// by side with the server; the kubelet comes last.
func (s *server) addRuntime(ctx context.Context, g *run.Group, parts process.Local) (*machine.Node, error) {
	c, err := parts.Component(ctx, process.Parts.Kubelet)
	if err != nil {
		return nil, err
	}
	n, err := machine.NewNode(c, machine.SignedBy(s.Authority))
	if err != nil {
		return nil, err
	}
	if s.Options.Config.Node.CRIEndpoint == "" {
		g.Add(run.Unit{Name: "containerd", Run: n.RunRuntime})
	}
	return n, nil
}

// addControl adds the controllers and the scheduler.
func (s *server) addControl(ctx context.Context, g *run.Group, parts process.Local) error {
	loops, err := parts.Component(ctx, process.Parts.Controllers)
	if err != nil {
		return err
	}
	keys := control.Keys{RootCA: s.Authority.RootsPEM, Minter: satoken.SecretTokens{Signer: s.who.minter}, Authority: s.Authority.CASigner}
	g.Add(run.Unit{Name: process.Parts.Controllers.Name, Run: func(ctx context.Context) error { return control.Loops(ctx, loops, keys) }})
	scheduler, err := parts.Component(ctx, process.Parts.Scheduler)
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	g.Add(run.Unit{Name: process.Parts.Scheduler.Name, Ready: ready, Run: func(ctx context.Context) error {
		return control.Scheduler(ctx, scheduler, sync.OnceFunc(func() { close(ready) }))
	}})
	return nil
}

// applyManifests applies the folder of manifests, once there is the role to do so.
func (s *server) applyManifests(ctx context.Context) error {
	if !run.Await(ctx, s.boot.Ready()) {
		return nil
	}
	return control.Manifests{Options: s.Options, API: s.local, Elect: s.internal.Kube, Warn: s.warn}.Run(ctx)
}

// addNetworking adds the service proxy and the DNS of this machine.
func addNetworking(ctx context.Context, g *run.Group, parts process.Local) error {
	c, err := parts.Component(ctx, process.Parts.Proxy)
	if err != nil {
		return err
	}
	n, err := machine.NewNetworking(c, client.InMemory(parts.Handler, roles.CoreDNS(), process.Parts.DNS.Name))
	if err != nil {
		return err
	}
	g.Add(run.Unit{Name: "services", Run: n.Proxy, Ready: n.ProxyReady()})
	g.Add(run.Unit{Name: "proxy status", Run: n.Status})
	g.Add(run.Unit{Name: "dns", Run: n.DNS, Ready: n.DNSReady()})
	return nil
}

// APIServer runs the API server by itself.
func APIServer(ctx context.Context, o Options, ready func(Info)) error {
	s, err := newServer(ctx, o, process.Parts.APIServer.Asks())
	if err != nil {
		return err
	}
	g := s.group
	for _, u := range s.units() {
		g.Add(u)
	}
	return g.Run(ctx, func() {
		if err := errors.Join(s.Publish("none"), s.PublishComponents()); err != nil {
			o.Logger.ErrorContext(ctx, "kubeconfigs could not be written", "error", err)
		}
		ready(Info{Cluster: o.Config.Cluster.Name, Server: s.URL()})
	})
}
