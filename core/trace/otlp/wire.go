// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync/atomic"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/trace/journey"
)

// Paths of the endpoint. They are not resources: who may use them is a matter of
// nonResourceURLs.
const (
	SpansPath   = "/apis/trace.wasmplane.dev/v1/spans"   // POST: create
	JourneyPath = "/apis/trace.wasmplane.dev/v1/journey" // GET: get
)

const (
	wireProtobuf = "application/x-protobuf"
	wireJSON     = "application/json"
	maxBody      = 8 << 20 // of one delivery, unpacked
	maxDepth     = 64      // of its JSON
)

// exporter posts spans to a server's endpoint.
type exporter struct {
	client    *http.Client
	url       string
	component string
	lost      atomic.Int64
}

// NewExporter sends a component's spans to the API server at base
// ("https://host:6443"). client carries the component's identity (as
// rest.HTTPClientFor makes it). Hand it to trace.NewProvider, which queues and retries.
func NewExporter(client *http.Client, base, component string) (sdktrace.SpanExporter, error) {
	if client == nil {
		return nil, errors.New("span exporter: no HTTP client given")
	}
	if !strings.HasPrefix(base, "http://") && !strings.HasPrefix(base, "https://") {
		return nil, fmt.Errorf("span exporter: server %q: want a URL", base)
	}
	return &exporter{client: client, url: strings.TrimSuffix(base, "/") + SpansPath, component: component}, nil
}

// RecordLost has the next delivery say how many spans were lost in all.
func (e *exporter) RecordLost(total int64) { e.lost.Store(total) }

// ExportSpans implements sdktrace.SpanExporter.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	own := make([]trace.Span, len(spans))
	for i, s := range spans {
		own[i] = trace.SpanOf(s)
	}
	body, err := proto.Marshal(toOTLP(e.component, e.lost.Load(), own))
	if err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("send spans: %w", err)
	}
	req.Header.Set("Content-Type", wireProtobuf)
	resp, err := e.client.Do(req)
	if err != nil {
		return fmt.Errorf("send spans: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, 1024)) //nolint:errcheck // only for the message
	switch {
	case resp.StatusCode < 300:
		return nil
	case resp.StatusCode == http.StatusBadRequest || resp.StatusCode == http.StatusRequestEntityTooLarge:
		e.lost.Add(int64(len(spans)))
		return nil // it would be refused again
	}
	return fmt.Errorf("send spans to %s: %s: %s", e.url, resp.Status, answer)
}

// Shutdown implements sdktrace.SpanExporter.
func (e *exporter) Shutdown(context.Context) error { return nil }

// NewHandler serves SpansPath and JourneyPath from a store. The server in front
// of it has authenticated and authorized the request, and sender says who sends it: spans in the name
// of a component that it is not, or of another node, are rejected.
func NewHandler(store *trace.Store, sender func(*http.Request) Sender) http.Handler {
	mux := http.NewServeMux()
	e := &endpoint{store: store, sender: sender}
	mux.HandleFunc("POST "+SpansPath, e.servePost)
	mux.HandleFunc("GET "+JourneyPath, e.serveJourney)
	return mux
}

// endpoint serves a store.
type endpoint struct {
	store  *trace.Store
	sender func(*http.Request) Sender
}

// servePost takes what an OpenTelemetry exporter sends (OTLP over HTTP).
func (e *endpoint) servePost(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(w, r)
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) || errors.Is(err, errTooLarge) {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) //nolint:errcheck // an odd one is refused below
	data, err := decodeOTLP(mediaType, body)
	switch {
	case errors.Is(err, errMediaType):
		http.Error(w, err.Error(), http.StatusUnsupportedMediaType)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d := fromOTLP(data)
	d.keep(e.sender(r))
	e.store.Add(d.spans...)
	e.store.RecordLost(d.lost)
	w.Header().Set("Content-Type", mediaType)
	_, _ = w.Write(accepted(mediaType, d.rejected)) //nolint:errcheck // the client has gone
}

// accepted is an ExportTraceServiceResponse: empty, or how many spans were rejected.
func accepted(mediaType string, rejected int) []byte {
	const why = "a span needs identifiers and times, and is to be of the component and node that sends it"
	switch {
	case mediaType == wireJSON && rejected == 0:
		return []byte("{}")
	case mediaType == wireJSON:
		return fmt.Appendf(nil, `{"partialSuccess":{"rejectedSpans":"%d","errorMessage":%q}}`, rejected, why)
	case rejected == 0:
		return nil
	}
	var partial []byte // fields of ExportTracePartialSuccess: 1 rejected_spans, 2 error_message
	partial = protowire.AppendVarint(protowire.AppendTag(partial, 1, protowire.VarintType), uint64(rejected))
	partial = protowire.AppendString(protowire.AppendTag(partial, 2, protowire.BytesType), why)
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), partial)
}

var (
	errMediaType = errors.New("want Content-Type application/x-protobuf or application/json")
	errTooLarge  = fmt.Errorf("the request is larger than %d bytes", maxBody)
)

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	var in io.Reader = http.MaxBytesReader(w, r.Body, maxBody)
	switch enc := r.Header.Get("Content-Encoding"); enc {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("read gzip: %w", err)
		}
		in = io.LimitReader(z, maxBody+1)
	default:
		return nil, fmt.Errorf("content encoding %q: want gzip or none", enc)
	}
	body, err := io.ReadAll(in)
	if err != nil {
		return nil, fmt.Errorf("read spans: %w", err)
	}
	if len(body) > maxBody {
		return nil, errTooLarge
	}
	return body, nil
}

// decodeOTLP reads an ExportTraceServiceRequest, which is a TracesData on the wire.
func decodeOTLP(mediaType string, body []byte) (*tracepb.TracesData, error) {
	data := &tracepb.TracesData{}
	switch mediaType {
	case wireProtobuf:
		if err := proto.Unmarshal(body, data); err != nil {
			return nil, fmt.Errorf("decode spans: %w", err)
		}
	case wireJSON:
		plain, err := base64IDs(body)
		if err != nil {
			return nil, fmt.Errorf("decode spans: %w", err)
		}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(plain, data); err != nil {
			return nil, fmt.Errorf("decode spans: %w", err)
		}
	default:
		return nil, fmt.Errorf("Content-Type %q: %w", mediaType, errMediaType) // a header's name
	}
	return data, nil
}

// base64IDs turns the hexadecimal identifiers of OTLP's JSON into the base64 of protobuf's.
func base64IDs(body []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return nil, err
	}
	if err := convertIDs(tree, 0); err != nil {
		return nil, err
	}
	return json.Marshal(tree)
}

func convertIDs(tree any, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("JSON is nested more than %d deep", maxDepth)
	}
	switch x := tree.(type) {
	case []any:
		for _, e := range x {
			if err := convertIDs(e, depth+1); err != nil {
				return err
			}
		}
	case map[string]any:
		for k, v := range x {
			text, isText := v.(string)
			switch k {
			case "traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id":
				if isText {
					b, err := hex.DecodeString(text)
					if err != nil {
						return fmt.Errorf("%s: %w", k, err)
					}
					x[k] = base64.StdEncoding.EncodeToString(b)
					continue
				}
			}
			if err := convertIDs(v, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// serveJourney answers ?kind=&namespace=&name=&uid=&all= with a Journey as JSON.
func (e *endpoint) serveJourney(w http.ResponseWriter, r *http.Request) {
	v := r.URL.Query()
	j, err := journey.Of(e.store, trace.Query{
		Kind: v.Get("kind"), Namespace: v.Get("namespace"), Name: v.Get("name"), UID: v.Get("uid"),
		All: v.Get("all") == "true" || v.Get("all") == "1",
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", wireJSON)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(j) //nolint:errcheck // the client has gone
}
