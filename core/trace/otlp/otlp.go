// SPDX-License-Identifier: Apache-2.0

// Package otlp carries spans and journeys over HTTP: an exporter posts a component's
// spans to the API server in OpenTelemetry's own wire format, so that others'
// exporters can feed it too, and a handler takes them for a store and answers
// journeys. What comes in is bounded before it is decoded.
package otlp

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/wasmplane/wasmplane/core/trace"
)

// lostKey counts, on a resource, the spans that its exporter had to drop so far.
const lostKey = attribute.Key("wasmplane.spans.lost")

// delivery is what one request of an exporter brings.
type delivery struct {
	spans    []trace.Span
	rejected int
	lost     map[string]int64 // by component
}

// fromOTLP reads spans off the wire; those without identifiers or times are rejected.
func fromOTLP(data *tracepb.TracesData) delivery {
	d := delivery{lost: map[string]int64{}}
	for _, rs := range data.GetResourceSpans() {
		resource := otlpAttrs(rs.GetResource().GetAttributes())
		component := resource[string(trace.ServiceName)]
		if n, err := strconv.ParseInt(resource[string(lostKey)], 10, 64); err == nil && n > 0 {
			d.lost[component] = max(d.lost[component], n)
		}
		for _, ss := range rs.GetScopeSpans() {
			for _, p := range ss.GetSpans() {
				s, ok := spanFromOTLP(p, component)
				if !ok {
					d.rejected++
					continue
				}
				d.spans = append(d.spans, s)
			}
		}
	}
	return d
}

func spanFromOTLP(p *tracepb.Span, component string) (trace.Span, bool) {
	if len(p.GetTraceId()) != 16 || len(p.GetSpanId()) != 8 || p.GetStartTimeUnixNano() == 0 ||
		p.GetEndTimeUnixNano() < p.GetStartTimeUnixNano() {
		return trace.Span{}, false
	}
	s := trace.Span{
		Trace: hex.EncodeToString(p.GetTraceId()), ID: hex.EncodeToString(p.GetSpanId()), Parent: hex.EncodeToString(p.GetParentSpanId()),
		Name: trace.Cut(p.GetName()), Start: nanos(p.GetStartTimeUnixNano()), End: nanos(p.GetEndTimeUnixNano()),
		Attrs: otlpAttrs(p.GetAttributes()),
	}
	if p.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR {
		s.Error = trace.Failure(p.GetStatus().GetMessage())
	}
	if s.Get(trace.ComponentKey) == "" && component != "" {
		s.Attrs[string(trace.ComponentKey)] = component
	}
	for _, e := range p.GetEvents() {
		if len(s.Events) < trace.MaxEvents {
			s.Events = append(s.Events, trace.SpanEvent{
				Name: trace.Cut(e.GetName()), Time: nanos(e.GetTimeUnixNano()), Attrs: otlpAttrs(e.GetAttributes()),
			})
		}
	}
	return s, true
}

func nanos(n uint64) time.Time { return time.Unix(0, int64(n)) } //nolint:gosec // times past 2262 are not spans of ours

func otlpAttrs(kvs []*commonpb.KeyValue) map[string]string {
	m := make(map[string]string, len(kvs)+1)
	for _, kv := range kvs {
		if len(m) < trace.MaxAttrs {
			m[trace.Cut(kv.GetKey())] = trace.Cut(otlpText(kv.GetValue(), 0))
		}
	}
	return m
}

func otlpText(v *commonpb.AnyValue, depth int) string {
	switch x := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return x.StringValue
	case *commonpb.AnyValue_BoolValue:
		return strconv.FormatBool(x.BoolValue)
	case *commonpb.AnyValue_IntValue:
		return strconv.FormatInt(x.IntValue, 10)
	case *commonpb.AnyValue_DoubleValue:
		return strconv.FormatFloat(x.DoubleValue, 'g', -1, 64)
	case *commonpb.AnyValue_BytesValue:
		return hex.EncodeToString(x.BytesValue)
	case *commonpb.AnyValue_ArrayValue:
		if depth > 4 {
			return "[…]"
		}
		// Each level quotes the one below it, which may double its length.
		var parts []string
		for _, e := range x.ArrayValue.GetValues()[:min(len(x.ArrayValue.GetValues()), trace.MaxAttrs)] {
			parts = append(parts, trace.Cut(otlpText(e, depth+1)))
		}
		return fmt.Sprintf("%q", parts)
	}
	return ""
}

// toOTLP is the wire form of a component's spans.
func toOTLP(component string, lost int64, spans []trace.Span) *tracepb.TracesData {
	resource := []*commonpb.KeyValue{textAttr(string(trace.ServiceName), component)}
	if lost > 0 {
		resource = append(resource, textAttr(string(lostKey), strconv.FormatInt(lost, 10)))
	}
	out := make([]*tracepb.Span, len(spans))
	for i := range spans {
		out[i] = spanToOTLP(&spans[i])
	}
	return &tracepb.TracesData{ResourceSpans: []*tracepb.ResourceSpans{{
		Resource:   resourceOf(resource),
		ScopeSpans: []*tracepb.ScopeSpans{{Spans: out}},
	}}}
}

func spanToOTLP(s *trace.Span) *tracepb.Span {
	p := &tracepb.Span{
		TraceId: unhex(s.Trace), SpanId: unhex(s.ID), ParentSpanId: unhex(s.Parent), Name: s.Name,
		StartTimeUnixNano: uint64(s.Start.UnixNano()), EndTimeUnixNano: uint64(s.End.UnixNano()), //nolint:gosec // after 1970
		Attributes: wireAttrs(s.Attrs),
	}
	if s.Error != "" {
		p.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: s.Error}
	}
	for _, e := range s.Events {
		p.Events = append(p.Events, &tracepb.Span_Event{Name: e.Name, TimeUnixNano: uint64(e.Time.UnixNano()), Attributes: wireAttrs(e.Attrs)}) //nolint:gosec // after 1970
	}
	return p
}

func wireAttrs(m map[string]string) []*commonpb.KeyValue {
	out := make([]*commonpb.KeyValue, 0, len(m))
	for k, v := range m {
		out = append(out, textAttr(k, v))
	}
	return out
}

func textAttr(k, v string) *commonpb.KeyValue {
	return &commonpb.KeyValue{
		Key:   k,
		Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: strings.ToValidUTF8(v, "\uFFFD")}},
	}
}

func unhex(text string) []byte {
	b, err := hex.DecodeString(text)
	if err != nil {
		return nil
	}
	return b
}

func resourceOf(attrs []*commonpb.KeyValue) *resourcepb.Resource {
	return &resourcepb.Resource{Attributes: attrs}
}
