package wire

import (
	"context"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/run"
)

// remoteComponent is a component whose API server is another process.
func remoteComponent(o Options, name string) (*component, error) {
	cfg, err := client.FromKubeconfig(o.Kubeconfig, name)
	if err != nil {
		return nil, err
	}
	set, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	spans, err := newTracing(o)
	if err != nil {
		return nil, err
	}
	return &component{
		o: o, config: cfg, identities: client.TokenIdentities{Base: cfg, Kube: set.Kube},
		tracer: spans.tracer(name), plugins: &plugins{},
	}, nil
}

// Scheduler runs the scheduler by itself.
func Scheduler(ctx context.Context, o Options, ready func(Info)) error {
	return componentRun(ctx, o, "scheduler", func(ctx context.Context, c *component, ready func()) error {
		return c.scheduler(ctx, ready)
	}, ready)
}

// Controllers runs the control loops by themselves.
func Controllers(ctx context.Context, o Options, ready func(Info)) error {
	return componentRun(ctx, o, "controllers", func(ctx context.Context, c *component, ready func()) error {
		ready()
		return c.controllers(ctx, c.config.CAData, nil)
	}, ready)
}

var _ = run.Parallel
