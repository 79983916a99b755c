package wire

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/informers"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/scheduler"
)

type plugins struct{}

func newPlugins(context.Context, Options, informers.SharedInformerFactory, oteltrace.Tracer, prometheus.Registerer) (*plugins, error) {
	return &plugins{}, nil
}
func (p *plugins) authorizers() (before, after []authz.Authorizer) { return nil, nil }
func (p *plugins) admission() []admission.Plugin                   { return nil }
func (p *plugins) run(ctx context.Context) error                   { <-ctx.Done(); return nil }
func (p *plugins) ready() <-chan struct{}                          { return nil }

func (p *plugins) scheduling() []scheduler.Weighted { return nil }

func (p *plugins) nodeAdmitters() []kubelet.Admitter { return nil }
