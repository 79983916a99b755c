// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/wasmplane/wasmplane/core/api/satoken"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/hostfn/backend"
)

// remoteComponent is a component whose API server is another process.
func remoteComponent(ctx context.Context, o Options, p part) (*component, error) {
	cfg, err := client.FromKubeconfig(o.Kubeconfig, p.name)
	if err != nil {
		return nil, err
	}
	set, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	spans, err := remoteTracing(cfg)
	if err != nil {
		return nil, err
	}
	tracer, err := spans.tracer(ctx, p.name)
	if err != nil {
		return nil, err
	}
	metrics := prometheus.NewRegistry()
	events := backend.NewEvents(set.Kube)
	loaded, err := newPlugins(ctx, o, pluginEnvironment{
		namespaces: (&client.Namespaces{Kube: set.Kube}).Labels, kube: set.Kube, host: remoteBackend(o, p, set, events), events: events, metrics: metrics, points: p.asks(),
	})
	if err != nil {
		return nil, err
	}
	return &component{
		o: o, config: cfg, identities: client.TokenIdentities{Base: cfg, Kube: set.Kube},
		tracer: tracer, spans: spans, plugins: loaded, dynamic: set.Dynamic, metrics: metrics,
		watch: leaderelection.NewLeaderHealthzAdaptor(20 * time.Second),
	}, nil
}

// remoteBackend is what a component by itself offers to plugins, by its own client and
// with its own rights. A node keeps what its plugins keep on its own disk.
func remoteBackend(o Options, p part, set *client.Set, events *backend.Events) hostfn.Backend {
	var state hostfn.StateStore = backend.ConfigMapState{Kube: set.Kube}
	if p.stateOnDisk {
		state = &backend.FileState{Dir: o.Dir.PluginState()}
	}
	return hostfn.Backend{
		State: state, Objects: backend.NewClient(set), Access: backend.ClientAccess{Kube: set.Kube}, Events: events,
		Images: hostfn.NewImages(nil), Logger: o.Logger,
	}
}

// Scheduler runs the scheduler by itself.
func Scheduler(ctx context.Context, o Options, ready func(Info)) error {
	return componentRun(ctx, o, parts.scheduler, func(ctx context.Context, c *component, ready func()) error {
		return c.scheduler(ctx, ready)
	}, ready)
}

// Controllers runs the control loops by themselves.
func Controllers(ctx context.Context, o Options, ready func(Info)) error {
	return componentRun(ctx, o, parts.controllers, func(ctx context.Context, c *component, ready func()) error {
		ready()
		with, err := c.keys()
		if err != nil {
			return err
		}
		return c.controllers(ctx, with)
	}, ready)
}

// keys are what this process can give to its control loops: where the data
// directory holds the cluster's keys too, as on a machine that also runs an
// apiserver, it can sign; elsewhere certificate requests and token secrets wait for
// another process.
func (c *component) keys() (controlling, error) {
	with := controlling{rootCA: c.config.CAData}
	switch _, err := os.Stat(filepath.Join(c.o.Dir.PKI(), "ca.key")); {
	case errors.Is(err, fs.ErrNotExist):
		c.o.Logger.Info("this process has no keys of the cluster: it signs neither certificate requests nor token secrets", "directory", c.o.Dir.PKI())
		return with, nil
	case err != nil:
		return with, fmt.Errorf("look for the cluster's keys: %w", err)
	}
	authority, err := pki.Open(pki.Config{Dir: c.o.Dir.PKI(), ClusterDomain: c.o.Config.Cluster.Domain, Log: c.o.Logger})
	if err != nil {
		return with, err
	}
	signer, err := tokenSigner(c.o, authority)
	if err != nil {
		return with, err
	}
	with.authority = authority.CASigner
	tokens, err := satoken.NewSigner(c.o.Config.APIServer.ServiceAccountIssuer, signer)
	if err != nil {
		return with, err
	}
	with.minter = satoken.SecretTokens{Signer: tokens}
	return with, nil
}

// Kubelet runs this machine as a node by itself.
func Kubelet(ctx context.Context, o Options, ready func(Info)) error {
	if !o.Config.Node.Mode.Real {
		return fmt.Errorf("a kubelet by itself runs this machine as a node; simulated nodes run with `wasmplane up --nodes %s`", o.Config.Node.Mode)
	}
	if o.Config.Node.CRIEndpoint == "" {
		if err := requireHost(ctx); err != nil {
			return err
		}
	}
	return componentRun(ctx, o, parts.kubelet, func(ctx context.Context, c *component, ready func()) error {
		// The serving certificate comes from the cluster's own authority, so this
		// shares the apiserver's data directory.
		authority, err := pki.Open(pki.Config{Dir: o.Dir.PKI(), ClusterDomain: o.Config.Cluster.Domain, Log: o.Logger})
		if err != nil {
			return err
		}
		n, err := newRealNode(c, authority)
		if err != nil {
			return err
		}
		parts := []func(context.Context) error{n.run, func(ctx context.Context) error {
			select {
			case <-n.ready:
				ready()
				<-ctx.Done()
			case <-ctx.Done():
			}
			return nil
		}}
		if o.Config.Node.CRIEndpoint == "" {
			parts = append(parts, n.runRuntime)
		}
		return run.Parallel(parts...)(ctx)
	}, ready)
}

// Proxy routes Services on this machine by itself, and answers the cluster's names.
// The DNS has an identity of its own: dns.kubeconfig beside the proxy's.
func Proxy(ctx context.Context, o Options, ready func(Info)) error {
	return componentRun(ctx, o, parts.proxy, func(ctx context.Context, c *component, ready func()) error {
		names, err := client.FromKubeconfig(filepath.Join(filepath.Dir(o.Kubeconfig), parts.dns.name+".kubeconfig"), parts.dns.name)
		if err != nil {
			return err
		}
		n, err := newNetworking(c, names)
		if err != nil {
			return err
		}
		return run.Parallel(n.proxy, n.dns, func(ctx context.Context) error {
			for _, part := range []<-chan struct{}{n.proxyReady, n.dnsReady} {
				select {
				case <-part:
				case <-ctx.Done():
					return nil
				}
			}
			ready()
			<-ctx.Done()
			return nil
		})(ctx)
	}, ready)
}
