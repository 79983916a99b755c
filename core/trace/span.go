// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

// Span is one recorded step, as the store keeps it.
type Span struct {
	Trace  string // hexadecimal
	ID     string
	Parent string // "" = none
	Name   string
	Start  time.Time
	End    time.Time
	Error  string // "" = the step did not fail
	Attrs  map[string]string
	Events []SpanEvent
}

// SpanEvent is a moment within a step.
type SpanEvent struct {
	Name  string
	Time  time.Time
	Attrs map[string]string
}

// What a span may hold at most: one that carries more is cut, not refused.
const (
	maxAttrs  = 64
	maxText   = 32 << 10
	maxEvents = 64
)

// Get returns an attribute, "" where it is not set.
func (s *Span) Get(k attribute.Key) string { return s.Attrs[string(k)] }

func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}

// fromSDK copies a span that ended in this process.
func fromSDK(s sdktrace.ReadOnlySpan) Span {
	out := Span{
		Trace: s.SpanContext().TraceID().String(), ID: s.SpanContext().SpanID().String(),
		Name: s.Name(), Start: s.StartTime(), End: s.EndTime(),
		Attrs: sdkAttrs(s.Attributes()),
	}
	if s.Parent().HasSpanID() {
		out.Parent = s.Parent().SpanID().String()
	}
	if st := s.Status(); st.Code == codes.Error {
		out.Error = orFailed(cut(st.Description))
	}
	if out.Get(ComponentKey) == "" {
		for _, kv := range s.Resource().Attributes() {
			if kv.Key == serviceName {
				out.Attrs[string(ComponentKey)] = kv.Value.String()
			}
		}
	}
	for _, e := range s.Events() {
		if len(out.Events) < maxEvents {
			out.Events = append(out.Events, SpanEvent{Name: cut(e.Name), Time: e.Time, Attrs: sdkAttrs(e.Attributes)})
		}
	}
	return out
}

func orFailed(text string) string {
	if text == "" {
		return "failed"
	}
	return text
}

func sdkAttrs(kvs []attribute.KeyValue) map[string]string {
	m := make(map[string]string, len(kvs)+1)
	for _, kv := range kvs {
		if len(m) < maxAttrs {
			m[string(kv.Key)] = cut(kv.Value.String())
		}
	}
	return m
}

// serviceName is OpenTelemetry's name for the component of a resource.
const serviceName = attribute.Key("service.name")

// lostKey counts, on a resource, the spans that its exporter had to drop so far.
const lostKey = attribute.Key("wasmplane.spans.lost")

// delivery is what one request of an exporter brings.
type delivery struct {
	spans    []Span
	rejected int
	lost     map[string]int64 // by component
}

// fromOTLP reads spans off the wire; those without identifiers or times are rejected.
func fromOTLP(data *tracepb.TracesData) delivery {
	d := delivery{lost: map[string]int64{}}
	for _, rs := range data.GetResourceSpans() {
		resource := otlpAttrs(rs.GetResource().GetAttributes())
		component := resource[string(serviceName)]
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

func spanFromOTLP(p *tracepb.Span, component string) (Span, bool) {
	if len(p.GetTraceId()) != 16 || len(p.GetSpanId()) != 8 || p.GetStartTimeUnixNano() == 0 ||
		p.GetEndTimeUnixNano() < p.GetStartTimeUnixNano() {
		return Span{}, false
	}
	s := Span{
		Trace: hex.EncodeToString(p.GetTraceId()), ID: hex.EncodeToString(p.GetSpanId()), Parent: hex.EncodeToString(p.GetParentSpanId()),
		Name: cut(p.GetName()), Start: nanos(p.GetStartTimeUnixNano()), End: nanos(p.GetEndTimeUnixNano()), Attrs: otlpAttrs(p.GetAttributes()),
	}
	if p.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR {
		s.Error = orFailed(cut(p.GetStatus().GetMessage()))
	}
	if s.Get(ComponentKey) == "" && component != "" {
		s.Attrs[string(ComponentKey)] = component
	}
	for _, e := range p.GetEvents() {
		if len(s.Events) < maxEvents {
			s.Events = append(s.Events, SpanEvent{Name: cut(e.GetName()), Time: nanos(e.GetTimeUnixNano()), Attrs: otlpAttrs(e.GetAttributes())})
		}
	}
	return s, true
}

func nanos(n uint64) time.Time { return time.Unix(0, int64(n)) } //nolint:gosec // times past 2262 are not spans of ours

func otlpAttrs(kvs []*commonpb.KeyValue) map[string]string {
	m := make(map[string]string, len(kvs)+1)
	for _, kv := range kvs {
		if len(m) < maxAttrs {
			m[cut(kv.GetKey())] = cut(otlpText(kv.GetValue(), 0))
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
		parts := make([]string, 0, len(x.ArrayValue.GetValues()))
		for _, e := range x.ArrayValue.GetValues() {
			parts = append(parts, otlpText(e, depth+1))
		}
		return fmt.Sprintf("%q", parts)
	}
	return ""
}

// toOTLP is the wire form of a component's spans.
func toOTLP(component string, lost int64, spans []Span) *tracepb.TracesData {
	resource := []*commonpb.KeyValue{textAttr(string(serviceName), component)}
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

func spanToOTLP(s *Span) *tracepb.Span {
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
