package wire

import (
	"context"
	"net/http"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/wasmplane/wasmplane/core/trace"
)

type tracing struct{}

func newTracing(Options) (*tracing, error)        { return &tracing{}, nil }
func (t *tracing) tracer(string) oteltrace.Tracer { return trace.Discard() }
func (t *tracing) handler() http.Handler          { return http.NotFoundHandler() }
func (t *tracing) run(ctx context.Context) error  { <-ctx.Done(); return nil }
