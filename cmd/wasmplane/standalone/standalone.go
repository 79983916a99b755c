// SPDX-License-Identifier: Apache-2.0

// Package standalone runs a part of the cluster in a process of its own, which
// reaches the API over the network under an identity of its own: scheduler,
// controllers, a machine's kubelet, proxy and DNS (apart, or as the agent of a
// machine that has joined), the webhooks of another cluster.
//
// It guarantees that what is put on a machine is known before, so that `down` can
// take it away again. It never opens a store: see cmd/wasmplane/wire for servers.
package standalone

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/control"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/run"
)

// Scheduler runs the scheduler by itself.
func Scheduler(ctx context.Context, o process.Options, ready func(process.Info)) error {
	return process.Run(ctx, o, process.Parts.Scheduler, func(ctx context.Context, c *process.Component, ready func()) error {
		return control.Scheduler(ctx, c, ready)
	}, ready)
}

// Controllers runs the control loops by themselves.
func Controllers(ctx context.Context, o process.Options, ready func(process.Info)) error {
	return process.Run(ctx, o, process.Parts.Controllers, func(ctx context.Context, c *process.Component, ready func()) error {
		ready()
		keys, err := control.KeysOf(c)
		if err != nil {
			return err
		}
		return control.Loops(ctx, c, keys)
	}, ready)
}

// Kubelet runs this machine as a node by itself.
func Kubelet(ctx context.Context, o process.Options, ready func(process.Info)) error {
	if !o.Config.Node.Mode.Real {
		return fmt.Errorf("a kubelet by itself runs this machine as a node; simulated nodes run with `wasmplane up --nodes %s`", o.Config.Node.Mode)
	}
	if o.Config.Node.CRIEndpoint == "" {
		if err := machine.RequireHost(ctx, o.Config); err != nil {
			return err
		}
	}
	return process.Run(ctx, o, process.Parts.Kubelet, func(ctx context.Context, c *process.Component, ready func()) error {
		if err := machine.WriteState(o, c.Config.Host); err != nil {
			return err
		}
		serving, renew, err := machine.ServingHere(c)
		if err != nil {
			return err
		}
		n, err := machine.NewNode(c, serving)
		if err != nil {
			return err
		}
		parts := []func(context.Context) error{n.Run, renew, whenReady(ready, n.Ready())}
		if o.Config.Node.CRIEndpoint == "" {
			parts = append(parts, n.RunRuntime)
		}
		return run.Parallel(parts...)(ctx)
	}, ready)
}

// Proxy routes Services on this machine by itself, and answers the cluster's names.
// The DNS has an identity of its own: dns.kubeconfig beside the proxy's.
func Proxy(ctx context.Context, o process.Options, ready func(process.Info)) error {
	return process.Run(ctx, o, process.Parts.Proxy, func(ctx context.Context, c *process.Component, ready func()) error {
		names, err := client.FromKubeconfig(filepath.Join(filepath.Dir(o.Kubeconfig), process.Parts.DNS.Name+".kubeconfig"),
			process.Parts.DNS.Name)
		if err != nil {
			return err
		}
		n, err := machine.NewNetworking(c, names)
		if err != nil {
			return err
		}
		return run.Parallel(n.Proxy, n.DNS, whenReady(ready, n.ProxyReady(), n.DNSReady()))(ctx)
	}, ready)
}

// whenReady calls ready once all parts are.
func whenReady(ready func(), parts ...<-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		if run.Await(ctx, parts...) {
			ready()
		}
		<-ctx.Done()
		return nil
	}
}
