// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/api/satoken"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
)

// Up runs a whole cluster in this process until ctx ends.
func Up(ctx context.Context, o Options, ready func(Info)) error {
	mode := o.Config.Node.Mode
	if mode.Real && o.Config.Node.CRIEndpoint == "" {
		if err := requireHost(ctx); err != nil {
			return err
		}
	}
	s, err := newServer(ctx, o, nil)
	if err != nil {
		return err
	}
	// Known before anything is put on this host, so that `down` can take it away
	// again, however the start ends.
	if err := s.writeState("starting"); err != nil {
		return errors.Join(err, s.closeStore())
	}
	g := &run.Group{Logger: o.Logger, Progress: o.Progress, StopTimeout: stopTimeout}
	nodes, err := s.assemble(ctx, g, mode)
	if err != nil {
		return errors.Join(err, s.closeStore())
	}
	return g.Run(ctx, func() {
		if err := s.publish(nodes); err != nil {
			o.Logger.ErrorContext(ctx, "the cluster runs, but its kubeconfig could not be written", "error", err)
			o.note("error: " + err.Error())
		}
		ready(Info{Cluster: o.Config.Cluster.Name, Server: s.url(), Nodes: nodes})
	})
}

// assemble adds every part of the cluster to g, in the order of start, and says in
// words which nodes there are.
func (s *server) assemble(ctx context.Context, g *run.Group, mode config.NodeMode) (string, error) {
	var real *realNode
	if mode.Real {
		var err error
		if real, err = s.addRuntime(ctx, g); err != nil {
			return "", err
		}
	}
	for _, u := range s.units() {
		g.Add(u)
	}
	if err := s.addControl(ctx, g); err != nil {
		return "", err
	}
	switch {
	case mode.Real:
		g.Add(run.Unit{Name: "node " + s.o.Config.Node.Name, Run: real.run, Ready: real.ready})
		if err := s.addNetworking(ctx, g); err != nil {
			return "", err
		}
		return "node " + s.o.Config.Node.Name, nil
	case mode.Simulated > 0:
		return s.addSimulated(ctx, g, mode.Simulated)
	}
	return "no nodes", nil
}

// addControl adds the controllers and the scheduler.
func (s *server) addControl(ctx context.Context, g *run.Group) error {
	c, err := s.component(ctx, parts.controllers)
	if err != nil {
		return err
	}
	g.Add(run.Unit{Name: parts.controllers.name, Run: func(ctx context.Context) error {
		return c.controllers(ctx, controlling{rootCA: s.authority.CAPEM(), minter: satoken.SecretTokens{Signer: s.minter}, authority: s.authority.CASigner})
	}})
	sched, err := s.component(ctx, parts.scheduler)
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	g.Add(run.Unit{Name: parts.scheduler.name, Ready: ready, Run: func(ctx context.Context) error {
		return sched.scheduler(ctx, sync.OnceFunc(func() { close(ready) }))
	}})
	return nil
}

// publish writes what users and later commands look for.
func (s *server) publish(nodes string) error {
	k, err := s.authority.Kubeconfig(s.o.Config.Cluster.Name, s.url(), pki.Admin())
	if err != nil {
		return err
	}
	k.Embed = true
	if err := pki.RefreshKubeconfig(s.o.Dir.Kubeconfig(), k); err != nil {
		return err
	}
	if err := s.publishBreakGlass(); err != nil {
		return err
	}
	if s.o.MergeKubeconfig != "" {
		if err := pki.MergeKubeconfig(s.o.MergeKubeconfig, k); err != nil {
			return err
		}
	}
	return s.writeState(nodes)
}

// publishBreakGlass writes the way in that no authorizer can close. It is for the
// operator of this directory alone, and nothing uses it by default.
func (s *server) publishBreakGlass() error {
	k, err := s.authority.Kubeconfig(s.o.Config.Cluster.Name, s.url(), pki.BreakGlass())
	if err != nil {
		return err
	}
	k.Embed = true
	return pki.WriteKubeconfig(s.o.Dir.BreakGlassKubeconfig(), k)
}

func (s *server) writeState(nodes string) error {
	c := s.o.Config
	merged := s.o.MergeKubeconfig
	if merged == "" { // it may be merged since an earlier start
		if before, err := s.o.Dir.ReadState(); err == nil {
			merged = before.MergedInto
		}
	}
	return s.o.Dir.WriteState(datadir.State{
		Cluster: c.Cluster.Name, PodCIDR: c.Cluster.PodCIDR, ServiceCIDR: c.Cluster.ServiceCIDR,
		Nodes: nodes, NodeName: c.Node.Name, Server: s.url(), Started: time.Now(), Version: s.o.Version,
		LogDir: c.Node.LogDir, LogLinkDir: c.Node.LogLinkDir, CRIEndpoint: c.Node.CRIEndpoint, MergedInto: merged,
	})
}

// APIServer runs the API server by itself.
func APIServer(ctx context.Context, o Options, ready func(Info)) error {
	s, err := newServer(ctx, o, parts.apiserver.asks())
	if err != nil {
		return err
	}
	g := &run.Group{Logger: o.Logger, Progress: o.Progress, StopTimeout: stopTimeout}
	for _, u := range s.units() {
		g.Add(u)
	}
	return g.Run(ctx, func() {
		if err := errors.Join(s.publish("none"), s.publishComponents()); err != nil {
			o.Logger.ErrorContext(ctx, "kubeconfigs could not be written", "error", err)
		}
		ready(Info{Cluster: o.Config.Cluster.Name, Server: s.url()})
	})
}

// publishComponents writes a kubeconfig for each component, with its own identity.
func (s *server) publishComponents() error {
	if err := os.MkdirAll(filepath.Dir(s.o.Dir.ComponentKubeconfig("any")), 0o700); err != nil {
		return fmt.Errorf("make the folder of the components' kubeconfigs: %w", err)
	}
	for _, p := range clients() {
		k, err := s.authority.Kubeconfig(s.o.Config.Cluster.Name, s.url(), p.identity(s.o.Config))
		if err != nil {
			return err
		}
		if err := pki.WriteKubeconfig(s.o.Dir.ComponentKubeconfig(p.name), k); err != nil {
			return err
		}
	}
	return nil
}

// componentRun runs a component that is a process of its own.
func componentRun(ctx context.Context, o Options, p part, work func(ctx context.Context, c *component, ready func()) error, ready func(Info)) error {
	c, err := remoteComponent(ctx, o, p)
	if err != nil {
		return err
	}
	self, err := c.holder()
	if err != nil {
		return err
	}
	objects, err := c.plugins.objects(objectsOptions{client: c.dynamic, identity: p.name + "_" + self, reports: p.reports})
	if err != nil {
		return err
	}
	follow := objects.Run
	if len(p.asks()) == 0 {
		follow = func(ctx context.Context) error { // it asks none; to end would end the component
			<-ctx.Done()
			return nil
		}
	}
	return run.Parallel(c.serve(p), c.spans.run, c.plugins.run, follow, func(ctx context.Context) error {
		return work(ctx, c, sync.OnceFunc(func() { ready(Info{Cluster: o.Config.Cluster.Name, Server: c.config.Host}) }))
	})(ctx)
}
