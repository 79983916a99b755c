// SPDX-License-Identifier: Apache-2.0

// Package control runs the control loops, native and of plugins, and the scheduler, each
// under its own identity.
package control

import (
	"context"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/chart/render"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/all"
	"github.com/wasmplane/wasmplane/core/controllers/approval"
	"github.com/wasmplane/wasmplane/core/controllers/helmchart"
	"github.com/wasmplane/wasmplane/core/controllers/nodeipam"
	"github.com/wasmplane/wasmplane/core/controllers/nodelifecycle"
	"github.com/wasmplane/wasmplane/core/controllers/reconcilehost"
	"github.com/wasmplane/wasmplane/core/controllers/serviceaccount"
	"github.com/wasmplane/wasmplane/core/controllers/servicelb"
	"github.com/wasmplane/wasmplane/core/controllers/signing"
	"github.com/wasmplane/wasmplane/core/run"
)

// Keys are what only the owner of the cluster's keys can give to the control loops.
type Keys struct {
	RootCA    func() []byte         // PEM; nil: it is not published
	Minter    serviceaccount.Minter // nil: token secrets stay empty
	Authority signing.Authority     // nil: certificate requests stay unsigned
}

// Loops runs the control loops while this process leads.
func Loops(ctx context.Context, c *process.Component, keys Keys) error {
	set, err := client.New(c.Config)
	if err != nil {
		return err
	}
	if c.Options.OnlyPlugins {
		return c.Lead(ctx, set.Kube, "wasmplane-plugin-controllers", nil, func(ctx context.Context) error { return reconcilers(ctx, c, set) })
	}
	renderer, err := render.New(render.Limits{})
	if err != nil {
		return err
	}
	manager, err := all.New(all.Config{
		Controllers: c.Options.Config.Controllers.Enabled,
		Clients:     all.FromIdentities(c.Config, c.Identities),
		RootCA:      keys.RootCA, Minter: keys.Minter, CertificateAuthority: keys.Authority,
		BootstrapTokens: c.Options.Config.APIServer.BootstrapTokens,
		PodGroups:       c.Options.Config.FeatureGates[config.GenericWorkload],
		PoolStatus:      c.Options.Config.FeatureGates[config.DRAResourcePoolStatus],
		NodeIPAM: nodeipam.Config{
			CIDRs: strings.Split(c.Options.Config.Cluster.PodCIDR, ","), NodeBits: c.Options.Config.Cluster.NodeBits(),
		},
		NodeLifecycle: nodelifecycle.Config{MonitorGrace: time.Duration(c.Options.Config.Controllers.NodeMonitorGracePeriod)},
		LoadBalancer:  loadBalancer(c.Options.Config),
		Serving:       clusterNames(c.Options.Config),
		Charts: &helmchart.Config{
			Operators: *process.OperatorsDial(c.Options), Tenants: *process.TenantsDial(c.Options), Renderer: renderer,
			ClientsFor: func(namespace, name string) (*client.Set, error) {
				cfg, err := c.Identities.ForServiceAccount(namespace, name)
				if err != nil {
					return nil, err
				}
				return client.New(cfg)
			},
		},
		Log: c.Options.Logger, Tracer: c.Tracer,
	})
	if err != nil {
		return err
	}
	return c.Lead(ctx, set.Kube, "kube-controller-manager", nil, run.Parallel(manager.Run,
		func(ctx context.Context) error { return reconcilers(ctx, c, set) },
		func(ctx context.Context) error { return policies(ctx, c) },
	))
}

// clusterNames are those that no node may serve by.
func clusterNames(c *config.Configuration) *approval.Names {
	n := &approval.Names{Server: c.APIServer.SubjectAltNames, Domain: c.Cluster.Domain}
	n.Networks = append(c.Cluster.ServiceNetworks(), c.Cluster.PodNetworks()...) // none where a component of its own does not know them
	return n
}

// loadBalancer is what Services get: addresses of pools, or those of nodes but for the ports by
// which machines are reached and rescued.
func loadBalancer(c *config.Configuration) servicelb.Config {
	return servicelb.Config{Off: !c.LoadBalancer.Enabled, Pools: c.LoadBalancer.AddressPools(), ReservedPorts: machine.ReservedPorts(c)}
}

// reconcilers runs the control loops of Wasm plugins.
func reconcilers(ctx context.Context, c *process.Component, own *client.Set) error {
	host, err := reconcilehost.New(reconcilehost.Config{
		ClientFor: func(namespace, name string) (dynamic.Interface, error) {
			cfg, err := c.Identities.ForServiceAccount(namespace, name)
			if err != nil {
				return nil, err
			}
			return dynamic.NewForConfig(client.Newest(cfg)) // of all clients, the one that it needs: there may be hundreds
		},
		Reader: own.Dynamic, Kube: own.Kube, Log: c.Options.Logger, Tracer: c.Tracer,
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
		for _, r := range c.Plugins.Reconcilers() {
			now[r.Name()] = r
			if running[r.Name()] == r {
				continue // the adapter follows its plugin's reloads by itself
			}
			if err := host.Set(r); err != nil {
				c.Options.Logger.ErrorContext(ctx, "a reconciler cannot run", "plugin", r.Name(), "error", err)
			}
		}
		for name := range running {
			if now[name] == nil {
				host.Remove(name)
			}
		}
		running = now
	}
	defer c.Plugins.OnChange(set)()
	set()
	return host.Run(ctx)
}
