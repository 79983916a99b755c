// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
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
	MaxAttrs  = 64
	MaxText   = 32 << 10
	MaxEvents = 64
)

// Get returns an attribute, "" where it is not set.
func (s *Span) Get(k attribute.Key) string { return s.Attrs[string(k)] }

// Cut shortens a text to what a span may hold.
func Cut(text string) string {
	if len(text) <= MaxText {
		return text
	}
	return strings.ToValidUTF8(text[:MaxText], "") + "…"
}

// SpanOf copies a span that ended in this process.
func SpanOf(s sdktrace.ReadOnlySpan) Span {
	out := Span{
		Trace: s.SpanContext().TraceID().String(), ID: s.SpanContext().SpanID().String(),
		Name: s.Name(), Start: s.StartTime(), End: s.EndTime(),
		Attrs: sdkAttrs(s.Attributes()),
	}
	if s.Parent().HasSpanID() {
		out.Parent = s.Parent().SpanID().String()
	}
	if st := s.Status(); st.Code == codes.Error {
		out.Error = Failure(st.Description)
	}
	if out.Get(ComponentKey) == "" {
		for _, kv := range s.Resource().Attributes() {
			if kv.Key == ServiceName {
				out.Attrs[string(ComponentKey)] = kv.Value.String()
			}
		}
	}
	for _, e := range s.Events() {
		if len(out.Events) < MaxEvents {
			out.Events = append(out.Events, SpanEvent{Name: Cut(e.Name), Time: e.Time, Attrs: sdkAttrs(e.Attributes)})
		}
	}
	return out
}

// Failure is what a span's Error is for the description of its status.
func Failure(description string) string {
	if description == "" {
		return "failed"
	}
	return Cut(description)
}

func sdkAttrs(kvs []attribute.KeyValue) map[string]string {
	m := make(map[string]string, len(kvs)+1)
	for _, kv := range kvs {
		if len(m) < MaxAttrs {
			m[string(kv.Key)] = Cut(kv.Value.String())
		}
	}
	return m
}

// ServiceName is OpenTelemetry's name for the component of a resource.
const ServiceName = attribute.Key("service.name")
