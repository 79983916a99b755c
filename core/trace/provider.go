// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/wasmplane/wasmplane/core/run"
)

// Between a component and an exporter that goes over the network stands a queue.
const (
	queueSpans    = 4096
	batchSpans    = 512
	batchDelay    = 200 * time.Millisecond
	longestRetry  = 5 * time.Second
	exportTimeout = 10 * time.Second
)

// NewProvider makes the tracer of one component. Spans go to exporter: at once
// where that is a Store's, else through a bounded queue, in the background; a
// full queue drops them, counts that, and never holds up who traces. shutdown
// delivers what is queued, until its own ctx ends; ctx's end alone stops nothing, so that
// the spans of a component that stops still arrive.
func NewProvider(ctx context.Context, component string,
	exporter sdktrace.SpanExporter,
) (tracer oteltrace.Tracer, shutdown func(context.Context) error) {
	if store, ok := exporter.(direct); ok {
		p := &localProvider{store: store.store, component: component}
		return p.Tracer(component), func(context.Context) error { return nil }
	}
	p := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.AlwaysSample()),
		sdktrace.WithResource(resource.NewSchemaless(ServiceName.String(component))),
		sdktrace.WithSpanProcessor(newQueue(ctx, exporter)),
		sdktrace.WithRawSpanLimits(sdktrace.SpanLimits{
			AttributeValueLengthLimit: MaxText, AttributeCountLimit: MaxAttrs, EventCountLimit: MaxEvents,
			LinkCountLimit: 16, AttributePerEventCountLimit: MaxAttrs, AttributePerLinkCountLimit: 16,
		}),
	)
	return p.Tracer("wasmplane/" + component), p.Shutdown
}

// lossy is an exporter that passes on how many spans never reached it.
type lossy interface{ RecordLost(total int64) }

// queue is a span processor with a bounded queue that counts what it drops.
type queue struct {
	exporter sdktrace.SpanExporter
	spans    chan sdktrace.ReadOnlySpan
	flush    chan chan struct{}
	lost     atomic.Int64

	stopOnce sync.Once
	stop     chan context.Context // the context of Shutdown
	cancel   context.CancelFunc   // ends an export that is under way
	done     chan struct{}
	result   error // once done
}

func newQueue(ctx context.Context, e sdktrace.SpanExporter) *queue {
	q := &queue{
		exporter: e, spans: make(chan sdktrace.ReadOnlySpan, queueSpans), flush: make(chan chan struct{}),
		stop: make(chan context.Context, 1), done: make(chan struct{}),
	}
	ctx, q.cancel = context.WithCancel(context.WithoutCancel(ctx))
	run.Go("trace: export of spans", func() error {
		q.run(ctx)
		return nil
	})
	return q
}

// OnStart implements sdktrace.SpanProcessor.
func (q *queue) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor.
func (q *queue) OnEnd(s sdktrace.ReadOnlySpan) {
	select {
	case q.spans <- s:
	default:
		q.lost.Add(1)
	}
}

// ForceFlush implements sdktrace.SpanProcessor.
func (q *queue) ForceFlush(ctx context.Context) error {
	answer := make(chan struct{})
	select {
	case q.flush <- answer:
	case <-q.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-answer:
	case <-q.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// Shutdown implements sdktrace.SpanProcessor.
func (q *queue) Shutdown(ctx context.Context) error {
	q.stopOnce.Do(func() { q.stop <- ctx })
	select {
	case <-q.done:
	case <-ctx.Done():
		q.cancel()
		<-q.done
	}
	return q.result
}

func (q *queue) run(ctx context.Context) {
	defer close(q.done)
	defer q.cancel()
	timer := time.NewTimer(batchDelay)
	defer timer.Stop()
	var batch []sdktrace.ReadOnlySpan
	delay := batchDelay // longer while the other end fails
	retry := run.Backoff{First: 2 * batchDelay, Longest: longestRetry}
	for {
		// While the other end fails, spans gather in batch and then in the
		// channel; both are bounded.
		in := q.spans
		if len(batch) >= queueSpans {
			in = nil
		}
		select {
		case s := <-in:
			if batch = append(batch, s); len(batch) != batchSpans || delay > batchDelay {
				continue
			}
		case <-timer.C:
		case answer := <-q.flush:
			batch = q.deliver(ctx, q.drain(batch))
			close(answer)
		case stopping := <-q.stop:
			left := q.deliver(stopping, q.drain(batch)) //nolint:contextcheck // whoever stops it says how long the last batch may take
			q.lost.Add(int64(len(left)))
			q.result = q.exporter.Shutdown(stopping) //nolint:contextcheck // as above
			return
		}
		if batch = q.deliver(ctx, batch); len(batch) == 0 {
			delay = batchDelay
			retry.Reset()
		} else {
			delay = retry.Next()
		}
		timer.Reset(delay)
	}
}

// drain adds all that is queued now.
func (q *queue) drain(batch []sdktrace.ReadOnlySpan) []sdktrace.ReadOnlySpan {
	for {
		select {
		case s := <-q.spans:
			batch = append(batch, s)
		default:
			return batch
		}
	}
}

// deliver exports a batch in parts and returns what could not be delivered.
func (q *queue) deliver(ctx context.Context, batch []sdktrace.ReadOnlySpan) []sdktrace.ReadOnlySpan {
	if x, ok := q.exporter.(lossy); ok {
		x.RecordLost(q.lost.Load())
	}
	for len(batch) > 0 {
		n := min(len(batch), batchSpans)
		call, cancel := context.WithTimeout(ctx, exportTimeout)
		err := q.exporter.ExportSpans(call, batch[:n])
		cancel()
		if err != nil {
			return batch
		}
		batch = batch[n:]
	}
	return nil
}
