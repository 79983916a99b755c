// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/apiserver/answer"
	"github.com/wasmplane/wasmplane/core/auth/audit"
	"github.com/wasmplane/wasmplane/core/registry"
)

// watch serves a watch until the client goes, its time is up, or the server stops.
func (c *call) watch() error {
	began := c.s.cfg.Now()
	f, err := c.negotiate()
	if err != nil {
		return err
	}
	options, raw, err := c.listOptions()
	if err != nil {
		return err
	}
	events, err := c.s.answers.Events(f, c.reg, c.info.APIVersion, c.req.URL.Query())
	if err != nil {
		return err
	}
	timeout := time.Duration(float64(c.s.cfg.MinWatch) * (1 + rand.Float64()))
	if raw.TimeoutSeconds != nil && *raw.TimeoutSeconds > 0 {
		timeout = time.Duration(*raw.TimeoutSeconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(c.req.Context(), timeout)
	defer cancel()
	defer c.s.ends.Add(cancel)()
	defer c.reg.OnEnd(cancel)()

	stream, err := c.s.answers.Stream(c.w, c.req, f, cancel)
	if err != nil {
		return err
	}
	w, err := c.reg.Watch(ctx, c.request(), options)
	if apierrors.IsResourceExpired(err) {
		// Upstream tells this in the stream too; informers look for it there.
		if stream.Begin() == nil {
			_ = stream.Event(events.Status(err))
			_ = stream.Flush()
			stream.End()
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer w.Stop()
	gauge := c.s.metrics.Watches(c.info)
	gauge.Inc()
	defer gauge.Dec()
	if err := stream.Begin(); err != nil {
		return nil // the client has gone
	}
	audit.From(ctx).Started(http.StatusOK)
	defer stream.End()
	c.pump(ctx, w, stream, events, began)
	return nil
}

// pump hands events on as they come. What comes together is flushed together.
func (c *call) pump(ctx context.Context, w *registry.Watch, stream answer.Stream, encoder *answer.Events, began time.Time) {
	sent := c.s.metrics.Events(c.info)
	begun := false
	for {
		if !begun && w.CaughtUp() {
			begun = true
			watchBegun(ctx)
		}
		events, err := w.Next(ctx)
		if err != nil {
			if apierrors.IsResourceExpired(err) || apierrors.IsInternalError(err) {
				_ = stream.Event(encoder.Status(err))
				_ = stream.Flush()
			}
			return
		}
		initial := false
		for _, e := range events {
			initial = initial || e.InitialEnd
			event, err := encoder.Encode(ctx, e)
			if err != nil {
				c.s.cfg.Logger.ErrorContext(ctx, "an event of a watch could not be encoded; the watch ends", "resource", c.res.GroupResource,
					"error", err)
				return
			}
			if stream.Event(event) != nil {
				return
			}
		}
		if len(events) == 0 {
			continue
		}
		sent.Add(float64(len(events)))
		if initial {
			c.s.metrics.Initial(c.info, c.s.cfg.Now().Sub(began))
		}
		if stream.Flush() != nil {
			return
		}
	}
}
