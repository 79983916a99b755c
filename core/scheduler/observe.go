// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/measure"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
	"github.com/wasmplane/wasmplane/core/trace"
)

// observation records one cycle, as spans where somebody records them, and in metrics.
type observation struct {
	tracer  oteltrace.Tracer
	span    oteltrace.Span
	metrics *measure.Metrics
	profile string
	item    *queue.Item
	began   time.Time
	now     func() time.Time
	bound   bool // the pod has its node
}

func (s *Scheduler) observe(ctx context.Context, it *queue.Item, profile string) (context.Context, *observation) {
	p := it.Info.Pod
	ctx, span := s.cfg.Tracer.Start(ctx, "schedule", trace.Object("Pod", p.Namespace, p.Name, p.UID),
		oteltrace.WithAttributes(attribute.Int("wasmplane.scheduling.attempt", it.Attempts)))
	if owner := metav1.GetControllerOf(p); owner != nil && span.IsRecording() {
		span.SetAttributes(trace.OwnerUIDKey.String(string(owner.UID)))
	}
	return ctx, &observation{tracer: s.cfg.Tracer, span: span, metrics: s.metrics, profile: profile, item: it, began: s.now(), now: s.now}
}

func (o *observation) begin(ctx context.Context, part string) (context.Context, func(*Decision)) {
	if !o.span.IsRecording() {
		return ctx, func(*Decision) {}
	}
	ctx, span := o.tracer.Start(ctx, part)
	return ctx, func(d *Decision) {
		switch part {
		case "filter":
			span.SetAttributes(trace.NodesKey.String(d.nodesLeftOut()))
		case "score":
			span.SetAttributes(trace.ScoresKey.String(d.scoresByNode()))
		}
		span.End()
	}
}

func (o *observation) finish(d *Decision) {
	o.count(d)
	if o.span.IsRecording() {
		decision, message := "bound", ""
		if d.Node == "" {
			decision, message = "unschedulable", d.Message()
		}
		o.span.SetAttributes(trace.NodeKey.String(d.Node), trace.DecisionKey.String(decision), trace.MessageKey.String(message),
			trace.SeedKey.String(strconv.FormatUint(d.Seed, 10)), attribute.Int("wasmplane.scheduling.start", d.Start))
	}
	o.span.End()
}

// count the try by its result. One that was broken off, because the scheduler ends or
// somebody else was faster, has none.
func (o *observation) count(d *Decision) {
	took := o.now().Sub(o.began)
	switch {
	case o.bound:
		o.metrics.Attempt("scheduled", o.profile, took)
		o.metrics.Scheduled(o.item.Attempts, o.now().Sub(o.item.Added))
	case d.Fatal() != nil:
		o.metrics.Attempt("error", o.profile, took)
	case d.Node == "":
		o.metrics.Attempt("unschedulable", o.profile, took)
	}
}

// shown bounds how many nodes a span names.
const shown = 10

// nodesLeftOut: "2 of 3 nodes fit; left out: node-1: Insufficient cpu".
func (d *Decision) nodesLeftOut() string {
	text := fmt.Sprintf("%d of %d nodes fit", len(d.Feasible), d.Total)
	if d.Evaluated < d.Total && d.Whole == nil {
		text += fmt.Sprintf(" (%d looked at)", d.Evaluated)
	}
	names := make([]string, 0, len(d.Statuses))
	for name := range d.Statuses {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		switch i {
		case 0:
			text += "; left out: "
		case shown:
			return text + fmt.Sprintf(" and %d more", len(names)-shown)
		default:
			text += "; "
		}
		st := d.Statuses[name]
		text += name + ": " + strings.Join(st.Reasons, ", ") + " [" + st.Plugin + "]"
	}
	return text
}

// scoresByNode is JSON: {"node": {"total": 180, "NodeResourcesFit": 90, ...}, ...}, the best nodes first in count.
func (d *Decision) scoresByNode() string {
	totals := make([]int64, len(d.Feasible))
	order := make([]int, len(d.Feasible))
	for i := range order {
		order[i] = i
		for _, scores := range d.Scores {
			totals[i] += scores[i]
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(totals[b] - totals[a]) })
	out := map[string]map[string]int64{}
	for _, i := range order[:min(shown, len(order))] {
		row := map[string]int64{"total": totals[i]}
		for plugin, scores := range d.Scores {
			row[plugin] = scores[i]
		}
		out[d.Feasible[i].Node.Name] = row
	}
	text, err := json.Marshal(out)
	if err != nil {
		return ""
	}
	return string(text)
}
