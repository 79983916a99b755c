package apiserver

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/auth/audit"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry"
)

// gzipAbove is the size from which answers are compressed for clients that
// accept it. Below, compression costs more than the wire.
const gzipAbove = 128 << 10

// fail answers with the Status of err. Errors are JSON whatever the client
// accepts, except YAML: clients read the content type.
func (s *Server) fail(w http.ResponseWriter, req *http.Request, err error) {
	status := statusOf(err)
	audit.From(req.Context()).Status(status)
	if status.Code >= http.StatusInternalServerError && status.Reason == metav1.StatusReasonInternalError {
		s.cfg.Logger.ErrorContext(req.Context(), "A request failed.", "method", req.Method, "path", req.URL.Path, "error", err)
	}
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 && (status.Code == http.StatusTooManyRequests || status.Code >= 500) {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	f, negotiateErr := negotiate(req, true)
	if negotiateErr != nil || f.mediaType != object.YAML {
		f.mediaType = object.JSON
	}
	s.writeJSON(w, req, f, int(status.Code), status)
}

func statusOf(err error) *metav1.Status {
	var known apierrors.APIStatus
	var status metav1.Status
	switch {
	case errors.As(err, &known):
		status = known.Status()
	case errors.Is(err, context.DeadlineExceeded):
		status = apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0).Status()
	default:
		status = apierrors.NewInternalError(err).Status()
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if status.Status == "" {
		status.Status = metav1.StatusFailure
	}
	if status.Code == 0 {
		status.Code = http.StatusInternalServerError
	}
	return &status
}

// writeJSON answers with v as JSON, or as YAML where f says so.
func (s *Server) writeJSON(w http.ResponseWriter, req *http.Request, f format, code int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		s.cfg.Logger.ErrorContext(req.Context(), "An answer could not be encoded.", "path", req.URL.Path, "error", err)
		http.Error(w, "the answer could not be encoded", http.StatusInternalServerError)
		return
	}
	s.writeText(w, req, f, code, append(data, '\n'))
}

// writeText answers with JSON, made pretty or YAML as f says.
func (s *Server) writeText(w http.ResponseWriter, req *http.Request, f format, code int, data []byte) {
	switch {
	case f.mediaType == object.YAML:
		if y, err := yaml.JSONToYAML(data); err == nil {
			data = y
		}
	case f.pretty:
		var b bytes.Buffer
		if err := json.Indent(&b, data, "", "  "); err == nil {
			data = b.Bytes()
		}
	}
	mediaType := object.JSON
	if f.mediaType == object.YAML {
		mediaType = object.YAML
	}
	s.writeBytes(w, req, mediaType, code, data)
}

func (s *Server) writeBytes(w http.ResponseWriter, req *http.Request, mediaType string, code int, pieces ...[]byte) {
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	h := w.Header()
	h.Set("Content-Type", mediaType)
	h.Set("Cache-Control", "no-cache, private")
	if size < gzipAbove || !acceptsGzip(req) {
		h.Set("Content-Length", strconv.Itoa(size))
		w.WriteHeader(code)
		if req.Method == http.MethodHead {
			return
		}
		writeAll(w, pieces)
		return
	}
	h.Set("Content-Encoding", "gzip")
	h.Add("Vary", "Accept-Encoding")
	w.WriteHeader(code)
	if req.Method == http.MethodHead {
		return
	}
	z, ok := s.gzips.Get().(*gzip.Writer)
	if !ok {
		z, _ = gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
	}
	defer s.gzips.Put(z)
	z.Reset(w)
	writeAll(z, pieces)
	_ = z.Close() // the client has gone: nothing is left to say to it
}

// aFrame is as much as one frame of HTTP/2 carries in one record of TLS. What is
// written in larger parts is cut into frames of 16 KiB, and each of them, by the
// nine bytes that stand before it, into two records and two calls of the kernel.
const aFrame = 16<<10 - 9

// writeAll writes many small pieces in few calls. A client that has gone is no error.
func writeAll(w io.Writer, pieces [][]byte) {
	if len(pieces) == 1 {
		_ = writeFrames(w, pieces[0])
		return
	}
	b := bufio.NewWriterSize(w, aFrame)
	for _, p := range pieces {
		if _, err := b.Write(p); err != nil {
			return
		}
	}
	_ = b.Flush()
}

// writeFrames writes data a frame at a time.
func writeFrames(w io.Writer, data []byte) error {
	for len(data) > aFrame {
		if _, err := w.Write(data[:aFrame]); err != nil {
			return err
		}
		data = data[aFrame:]
	}
	_, err := w.Write(data)
	return err
}

func acceptsGzip(req *http.Request) bool {
	for _, encoding := range strings.Split(req.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(strings.SplitN(encoding, ";", 2)[0]) == "gzip" {
			return true
		}
	}
	return false
}

// writeObject answers with one object of a resource.
func (s *Server) writeObject(w http.ResponseWriter, req *http.Request, f format, code int, r *registry.Registry, o *object.Object) {
	if entry := audit.From(req.Context()); entry.WantsResponse() {
		if data, err := o.Encoded(object.JSON); err == nil {
			entry.Response(data)
		}
	}
	if f.convert.Empty() {
		data, err := o.Encoded(f.mediaType)
		switch {
		case err != nil:
			s.fail(w, req, apierrors.NewInternalError(err))
		case f.mediaType == object.JSON && f.pretty:
			s.writeText(w, req, f, code, data)
		default:
			s.writeBytes(w, req, f.mediaType, code, data)
		}
		return
	}
	if f.table() {
		s.writeTable(w, req, f, code, r, metav1.ListMeta{}, []*object.Object{o})
		return
	}
	if f.convert.Kind != "PartialObjectMetadata" {
		s.fail(w, req, notAcceptable([]string{"PartialObjectMetadata"}))
		return
	}
	data, err := partialBytes(o, f.convert, f.mediaType)
	switch {
	case err != nil:
		s.fail(w, req, apierrors.NewInternalError(err))
	case f.mediaType == object.Protobuf:
		s.writeBytes(w, req, object.Protobuf, code, data)
	default:
		s.writeText(w, req, f, code, append(data, '\n'))
	}
}

func (s *Server) writeTable(w http.ResponseWriter, req *http.Request, f format, code int, r *registry.Registry, list metav1.ListMeta, objects []*object.Object) {
	options, err := s.cfg.Contract.TableOptions(req.URL.Query())
	if err != nil {
		s.fail(w, req, err)
		return
	}
	pieces, err := s.tableOf(req.Context(), tableCall{resource: r.Resource(), version: versionOf(req), options: options, kind: f.convert}, list, objects)
	switch {
	case err != nil:
		s.fail(w, req, err)
	case f.mediaType == object.YAML || f.pretty:
		s.writeText(w, req, f, code, bytes.Join(pieces, nil))
	default:
		s.writeBytes(w, req, object.JSON, code, pieces...)
	}
}

// versionOf is the API version that a request names.
func versionOf(req *http.Request) string {
	if info, ok := genericrequest.RequestInfoFrom(req.Context()); ok {
		return info.APIVersion
	}
	return ""
}

// protoMessage is a meta object that has a protobuf form.
type protoMessage interface {
	Marshal() ([]byte, error)
	GetObjectKind() schema.ObjectKind
}

// writeMeta answers with an object of meta.k8s.io.
func (s *Server) writeMeta(w http.ResponseWriter, req *http.Request, f format, code int, o protoMessage) {
	if f.mediaType != object.Protobuf {
		s.writeJSON(w, req, f, code, o)
		return
	}
	data, err := protoEnvelope(o)
	if err != nil {
		s.fail(w, req, apierrors.NewInternalError(err))
		return
	}
	s.writeBytes(w, req, object.Protobuf, code, data)
}

// protoPrefix begins everything of Kubernetes in protobuf.
const protoPrefix = "k8s\x00"

// protoEnvelope wraps a message as Kubernetes does: the prefix, and an Unknown
// that says what the raw bytes are.
func protoEnvelope(o protoMessage) ([]byte, error) {
	raw, err := o.Marshal()
	if err != nil {
		return nil, err
	}
	return protoUnknown(o.GetObjectKind().GroupVersionKind(), raw)
}

// writeList answers with a list: what each item's bytes are is known, or made
// once for all clients.
func (s *Server) writeList(w http.ResponseWriter, req *http.Request, f format, r *registry.Registry, version string, l registry.ListResult) {
	list := metav1.ListMeta{ResourceVersion: registry.FormatRevision(l.Revision), Continue: l.Continue, RemainingItemCount: l.Remaining}
	items, err := r.AllInVersion(req.Context(), l.Items, version)
	if err != nil {
		s.fail(w, req, err)
		return
	}
	var pieces [][]byte
	if entry := audit.From(req.Context()); entry.WantsResponse() {
		if whole, err := jsonList(r.Resource(), version, list, items); err == nil {
			entry.Response(bytes.Join(whole, nil))
		}
	}
	switch {
	case f.table():
		s.writeTable(w, req, f, http.StatusOK, r, list, items)
		return
	case f.partial() && f.convert.Kind != "PartialObjectMetadataList":
		s.fail(w, req, notAcceptable([]string{"PartialObjectMetadataList"}))
		return
	case f.partial():
		pieces, err = partialList(f.convert, f.mediaType, list, items)
	case f.mediaType == object.Protobuf:
		pieces, err = protoList(r.Resource(), version, list, items)
	default:
		pieces, err = jsonList(r.Resource(), version, list, items)
	}
	switch {
	case err != nil:
		s.fail(w, req, apierrors.NewInternalError(err))
	case f.mediaType == object.YAML || f.pretty && f.mediaType == object.JSON:
		s.writeText(w, req, f, http.StatusOK, bytes.Join(pieces, nil))
	default:
		s.writeBytes(w, req, f.mediaType, http.StatusOK, pieces...)
	}
}

// jsonList writes a list around its items' own JSON.
func jsonList(r *api.Resource, version string, list metav1.ListMeta, items []*object.Object) ([][]byte, error) {
	kind := schema.GroupVersionKind{Group: r.Group, Version: version, Kind: r.ListKind}
	return jsonPieces(kind, list, items, func(o *object.Object) ([]byte, error) { return o.Encoded(object.JSON) })
}

func jsonPieces(kind schema.GroupVersionKind, list metav1.ListMeta, items []*object.Object, encode func(*object.Object) ([]byte, error)) ([][]byte, error) {
	listMeta, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	apiVersion, name := kind.ToAPIVersionAndKind()
	pieces, comma := make([][]byte, 0, 2*len(items)+2), []byte{','}
	pieces = append(pieces, fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":%s,"items":[`, name, apiVersion, listMeta))
	for i, o := range items {
		data, err := encode(o)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			pieces = append(pieces, comma)
		}
		pieces = append(pieces, bytes.TrimSuffix(data, []byte{'\n'}))
	}
	return append(pieces, []byte("]}\n")), nil
}

// protoList writes a list message around its items' own.
func protoList(r *api.Resource, version string, list metav1.ListMeta, items []*object.Object) ([][]byte, error) {
	kind := schema.GroupVersionKind{Group: r.Group, Version: version, Kind: r.ListKind}
	return protoPieces(kind, list, items, func(o *object.Object) ([]byte, error) {
		data, err := o.Encoded(object.Protobuf)
		if err != nil {
			return nil, err
		}
		raw, err := protoRaw(data)
		if err != nil {
			return nil, fmt.Errorf("encoded %s: %w", r.Kind, err)
		}
		return raw, nil
	})
}

// protoPieces writes a list message: every list of the API has its metadata as
// field 1 and its items as field 2.
func protoPieces(kind schema.GroupVersionKind, list metav1.ListMeta, items []*object.Object, encode func(*object.Object) ([]byte, error)) ([][]byte, error) {
	listMeta, err := list.Marshal()
	if err != nil {
		return nil, err
	}
	body := make([][]byte, 0, 2*len(items)+3)
	body = append(body, nil, append(protoHeader(1, len(listMeta)), listMeta...))
	size := len(body[1])
	headers := make([]byte, 0, 6*len(items)) // of the items; it may move, what points into it stays
	for _, o := range items {
		raw, err := encode(o)
		if err != nil {
			return nil, err
		}
		begin := len(headers)
		headers = appendProtoHeader(headers, 2, len(raw))
		body = append(body, headers[begin:len(headers):len(headers)], raw)
		size += len(headers) - begin + len(raw)
	}
	apiVersion, name := kind.ToAPIVersionAndKind()
	typeMeta, err := (&runtime.TypeMeta{APIVersion: apiVersion, Kind: name}).Marshal()
	if err != nil {
		return nil, err
	}
	head := append([]byte(protoPrefix), protoHeader(1, len(typeMeta))...)
	head = append(head, typeMeta...)
	head = append(head, protoHeader(2, size)...)
	// Empty contentEncoding and contentType, as upstream writes them.
	body[0] = head
	return append(body, append(protoHeader(3, 0), protoHeader(4, 0)...)), nil
}

// protoHeader begins a length-delimited field.
func protoHeader(field, size int) []byte { return appendProtoHeader(make([]byte, 0, 12), field, size) }

func appendProtoHeader(b []byte, field, size int) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(field<<3|2)), uint64(size))
}

var errEnvelope = errors.New("not in the protobuf envelope of Kubernetes")

// protoRaw is the message inside an envelope, not copied.
func protoRaw(data []byte) ([]byte, error) {
	if !bytes.HasPrefix(data, []byte(protoPrefix)) {
		return nil, errEnvelope
	}
	data = data[len(protoPrefix):]
	for len(data) > 0 {
		tag, n := binary.Uvarint(data)
		if n <= 0 || tag&7 != 2 {
			return nil, errEnvelope
		}
		data = data[n:]
		size, n := binary.Uvarint(data)
		if n <= 0 || size > uint64(len(data)-n) {
			return nil, errEnvelope
		}
		if tag>>3 == 2 {
			return data[n : n+int(size)], nil
		}
		data = data[n+int(size):]
	}
	return nil, nil // an empty message is left out
}

// gzipPool keeps compressors, which are large.
type gzipPool = sync.Pool
