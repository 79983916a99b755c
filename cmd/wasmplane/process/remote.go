// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/leader"
	"github.com/wasmplane/wasmplane/core/run/memory"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/hostfn/backend"
)

// Run runs a part that is a process of its own, whose API server is another process.
func Run(ctx context.Context, o Options, p Part, work func(ctx context.Context, c *Component, ready func()) error, ready func(Info)) error {
	c, err := remoteComponent(ctx, o, p)
	if err != nil {
		return err
	}
	self, err := c.Holder()
	if err != nil {
		return err
	}
	follow, err := c.follow(p, self)
	if err != nil {
		return err
	}
	started := make(chan struct{})
	begins := memory.Startup{Ready: started, Logger: o.Logger}
	return run.Parallel(c.serve(p), c.spans.Run, c.Plugins.Run, follow, memory.Pace, begins.Run, func(ctx context.Context) error {
		return work(ctx, c, sync.OnceFunc(func() {
			close(started)
			ready(Info{Cluster: o.Config.Cluster.Name, Server: c.Config.Host})
		}))
	})(ctx)
}

// follow loads the Plugins of the API that the part asks, and keeps the lease by which the others know
// that its reports hold.
func (c *Component) follow(p Part, self string) (func(context.Context) error, error) {
	if len(p.Asks()) == 0 {
		return func(ctx context.Context) error { // it asks none; to end would end the component
			<-ctx.Done()
			return nil
		}, nil
	}
	o := ObjectsOptions{Client: c.dynamic, Part: p, Holder: self}
	if p.reports {
		o.Presence = c.Plugins.Presence(o, c.kube)
	}
	objects, err := c.Plugins.Objects(o)
	if err != nil || o.Presence == nil {
		return objects.Run, err
	}
	return run.Parallel(o.Presence.Run, objects.Run), nil
}

// remoteComponent is a component whose API server is another process.
func remoteComponent(ctx context.Context, o Options, p Part) (*Component, error) {
	cfg, err := o.API, error(nil)
	if cfg == nil {
		if cfg, err = client.FromKubeconfig(o.Kubeconfig, p.Name); err != nil {
			return nil, err
		}
	}
	set, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	spans, err := remoteTracing(cfg)
	if err != nil {
		return nil, err
	}
	tracer, err := spans.Tracer(ctx, p.Name)
	if err != nil {
		return nil, err
	}
	metrics := prometheus.NewRegistry()
	events := backend.NewEvents(set.Kube)
	if err := o.KeepAttempts(metrics, events); err != nil {
		return nil, err
	}
	host := remoteBackend(o, p, set, events)
	if host.Signers, err = Signers(o); err != nil {
		return nil, err
	}
	loaded, err := NewPlugins(ctx, o, Environment{
		Namespaces: (&client.Namespaces{Kube: set.Kube}).Labels, Kube: set.Kube, Host: host, Events: events,
		Metrics: metrics, Points: p.Asks(),
	})
	if err != nil {
		return nil, err
	}
	return &Component{
		Options: o, Config: cfg, Identities: client.TokenIdentities{Base: cfg, Kube: set.Kube},
		Tracer: tracer, Plugins: loaded, Metrics: metrics, spans: spans, dynamic: set.Dynamic, kube: set.Kube,
		watch: new(leader.Watch),
	}, nil
}

// remoteBackend is what a component by itself offers to plugins, by its own client and
// with its own rights. A node keeps what its plugins keep on its own disk.
func remoteBackend(o Options, p Part, set *client.Set, events *backend.Events) hostfn.Backend {
	var state hostfn.StateStore = backend.ConfigMapState{Kube: set.Kube}
	if p.stateOnDisk {
		state = &backend.FileState{Dir: o.Dir.PluginState()}
	}
	return hostfn.Backend{
		State: state, Objects: backend.NewClient(set), Access: backend.ClientAccess{Kube: set.Kube}, Events: events,
		Images: hostfn.NewImages(nil, o.Attempts), Attempts: o.Attempts, Logger: o.Logger,
	}
}
