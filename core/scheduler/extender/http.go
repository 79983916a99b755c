// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/wasmplane/wasmplane/core/dial"
)

// Dialer says where extenders may be.
type Dialer = dial.Policy

// Bounds of an answer: it has the nodes of the question at the most, and a reason for each.
const (
	mostAnswer   = 1 << 20 // bytes of an answer, and
	mostPerAsked = 4       // bytes more for each that was sent
)

// send asks the extender under a verb, and reads its answer.
func (x *Extender) send(ctx context.Context, verb string, question, answer any) (err error) {
	// An otel span shows where a slow try has spent its time.
	if parent := oteltrace.SpanFromContext(ctx); parent.IsRecording() {
		var span oteltrace.Span
		ctx, span = parent.TracerProvider().Tracer("extender").Start(ctx, "extender "+verb,
			oteltrace.WithAttributes(attribute.String("wasmplane.scheduling.extender", x.s.URLPrefix)))
		defer func() {
			if err != nil {
				span.SetStatus(codes.Error, err.Error())
			}
			span.End()
		}()
	}
	began := time.Now()
	defer func() {
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("no answer within httpTimeout, %s: %w", x.s.HTTPTimeout.Duration, err)
		}
		x.observe(ctx, verb, err)
		x.reach.Metrics.called(x.s.URLPrefix, verb, err, time.Since(began))
	}()
	body, err := json.Marshal(question)
	if err != nil {
		return fmt.Errorf("encode what %s is asked: %w", verb, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, x.s.URLPrefix+"/"+verb, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("ask %s: %w", verb, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := x.client.Do(req)
	if err != nil {
		return err // it has method, URL and cause
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s; expected 200 OK", verb, short(resp.Status))
	}
	limit := mostAnswer + mostPerAsked*int64(len(body))
	data, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", verb, err)
	}
	if int64(len(data)) > limit {
		return &dial.TooLargeError{Host: req.URL.Host, Limit: limit}
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("read the answer of %s: %w", verb, err)
	}
	return nil
}
