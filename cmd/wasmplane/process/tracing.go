// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/trace/otlp"
)

// Tracing gives components their tracers. In the server's process spans go to the
// store at once; in others they are sent to the server, with the component's identity.
type Tracing struct {
	store    *trace.Store // nil outside the server's process
	exporter func(component string) (sdktrace.SpanExporter, error)

	mu        sync.Mutex
	tracers   map[string]oteltrace.Tracer
	shutdowns []func(context.Context) error
}

// NewTracing keeps the spans of the server's own process.
func NewTracing(o Options) (*Tracing, error) {
	store, err := trace.NewStore(trace.StoreConfig{MaxSpans: o.Config.Trace.MaxSpans, MaxBytes: int(o.Config.Trace.MaxBytes)})
	if err != nil {
		return nil, err
	}
	return &Tracing{
		store: store, tracers: map[string]oteltrace.Tracer{},
		exporter: func(string) (sdktrace.SpanExporter, error) { return store.Exporter(), nil },
	}, nil
}

// remoteTracing sends spans to the server that cfg names.
func remoteTracing(cfg *rest.Config) (*Tracing, error) {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	return &Tracing{
		tracers: map[string]oteltrace.Tracer{},
		exporter: func(component string) (sdktrace.SpanExporter, error) {
			return otlp.NewExporter(client, cfg.Host, component)
		},
	}, nil
}

// Tracer is the component's own.
func (t *Tracing) Tracer(ctx context.Context, component string) (oteltrace.Tracer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if tracer, ok := t.tracers[component]; ok {
		return tracer, nil
	}
	exporter, err := t.exporter(component)
	if err != nil {
		return nil, err
	}
	tracer, shutdown := trace.NewProvider(ctx, component, exporter)
	t.tracers[component] = tracer
	t.shutdowns = append(t.shutdowns, shutdown)
	return tracer, nil
}

// Handler serves what is stored, in the server's process.
func (t *Tracing) Handler() http.Handler {
	return otlp.NewHandler(t.store, func(req *http.Request) (s otlp.Sender) {
		if who, ok := genericrequest.UserFrom(req.Context()); ok {
			s.User, s.Groups = who.GetName(), who.GetGroups()
		}
		return s
	})
}

// Run waits for ctx's end, and then delivers what is still queued.
func (t *Tracing) Run(ctx context.Context) error {
	<-ctx.Done()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, shutdown := range t.shutdowns {
		errs = append(errs, shutdown(last))
	}
	return errors.Join(errs...)
}
