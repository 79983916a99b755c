package apiserver

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/wasmplane/wasmplane/core/auth/audit"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// watch serves a watch until the client goes, its time is up, or the server stops.
func (c *call) watch() error {
	f, err := c.negotiate()
	if err != nil {
		return err
	}
	if f.convert.Kind == "PartialObjectMetadataList" {
		f.convert.Kind = "PartialObjectMetadata"
	}
	options, raw, err := c.listOptions()
	if err != nil {
		return err
	}
	encoder := &watchEncoder{call: c, f: f}
	if f.table() {
		if encoder.table, err = c.s.cfg.Contract.TableOptions(c.req.URL.Query()); err != nil {
			return err
		}
	}
	timeout := time.Duration(float64(c.s.cfg.MinWatch) * (1 + rand.Float64()))
	if raw.TimeoutSeconds != nil && *raw.TimeoutSeconds > 0 {
		timeout = time.Duration(*raw.TimeoutSeconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(c.req.Context(), timeout)
	defer cancel()
	defer c.s.streams.add(cancel)()
	defer c.reg.OnEnd(cancel)()

	sink, err := c.sink(f, cancel)
	if err != nil {
		return err
	}
	w, err := c.reg.Watch(ctx, c.request(), options)
	if apierrors.IsResourceExpired(err) {
		// Upstream tells this in the stream too; informers look for it there.
		if sink.begin() == nil {
			_ = sink.event(watch.Error, encoder.status(err))
			_ = sink.flush()
			sink.end()
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer w.Stop()
	gauge := c.s.metrics.long.WithLabelValues("WATCH", c.info.APIGroup, c.info.APIVersion, c.info.Resource, "", scopeOf(c.info), "apiserver")
	gauge.Inc()
	defer gauge.Dec()
	if err := sink.begin(); err != nil {
		return nil // the client has gone
	}
	audit.From(ctx).Started(http.StatusOK)
	defer sink.end()
	c.pump(ctx, w, sink, encoder)
	return nil
}

// pump hands events on as they come. What comes together is flushed together.
func (c *call) pump(ctx context.Context, w *registry.Watch, sink sink, encoder *watchEncoder) {
	sent := c.s.metrics.events.WithLabelValues(c.info.APIGroup, c.info.APIVersion, c.info.Resource)
	begun := false
	for {
		if !begun && w.CaughtUp() {
			begun = true
			watchBegun(ctx)
		}
		events, err := w.Next(ctx)
		if err != nil {
			if apierrors.IsResourceExpired(err) || apierrors.IsInternalError(err) {
				_ = sink.event(watch.Error, encoder.status(err))
				_ = sink.flush()
			}
			return
		}
		for _, e := range events {
			kind, data, err := encoder.encode(ctx, e)
			if err != nil {
				c.s.cfg.Logger.ErrorContext(ctx, "An event of a watch could not be encoded; the watch ends.", "resource", c.res.GroupResource, "error", err)
				return
			}
			if sink.event(kind, data) != nil {
				return
			}
		}
		if len(events) > 0 {
			sent.Add(float64(len(events)))
			if sink.flush() != nil {
				return
			}
		}
	}
}

// watchEncoder makes the objects of a watch's events.
type watchEncoder struct {
	call  *call
	f     format
	table *metav1.TableOptions
}

func (e *watchEncoder) encode(ctx context.Context, event watchcache.Event) (watch.EventType, []byte, error) {
	if event.Type == watchcache.Bookmark {
		data, err := e.bookmark(ctx, event)
		return watch.Bookmark, data, err
	}
	o, err := e.call.reg.InVersion(ctx, event.Item, e.call.info.APIVersion)
	if err != nil {
		return "", nil, err
	}
	data, err := e.object(ctx, o)
	return kindOf(event.Type), data, err
}

func kindOf(t watchcache.EventType) watch.EventType {
	switch t {
	case watchcache.Added:
		return watch.Added
	case watchcache.Deleted:
		return watch.Deleted
	case watchcache.Modified, watchcache.Bookmark:
	}
	return watch.Modified
}

func (e *watchEncoder) object(ctx context.Context, o *object.Object) ([]byte, error) {
	switch {
	case e.f.table():
		return e.row(ctx, o)
	case e.f.partial():
		return partialBytes(o, e.f.convert, e.mediaType())
	}
	return o.Encoded(e.mediaType())
}

// mediaType of objects: a stream is JSON or protobuf.
func (e *watchEncoder) mediaType() string {
	if e.f.mediaType == object.Protobuf {
		return object.Protobuf
	}
	return object.JSON
}

func (e *watchEncoder) row(ctx context.Context, o *object.Object) ([]byte, error) {
	pieces, err := e.call.s.tableOf(ctx, tableCall{resource: e.call.res, version: e.call.info.APIVersion, options: e.table, kind: e.f.convert}, metav1.ListMeta{}, []*object.Object{o})
	if err != nil {
		return nil, err
	}
	e.table.NoHeaders = true // the columns are told once
	return bytes.Join(pieces, nil), nil
}

// bookmark is an object of the watched kind that has nothing but a
// resourceVersion, and says so where it ends the initial events.
func (e *watchEncoder) bookmark(ctx context.Context, event watchcache.Event) ([]byte, error) {
	codec := e.call.res.Codec(e.call.info.APIVersion)
	apiVersion, kind := codec.Kind().ToAPIVersionAndKind()
	o, err := codec.FromTree(map[string]any{"apiVersion": apiVersion, "kind": kind})
	if err != nil {
		return nil, err
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	m.SetResourceVersion(registry.FormatRevision(event.Revision))
	if event.InitialEnd {
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	if e.f.table() && e.table.IncludeObject == metav1.IncludeNone {
		// A bookmark is nothing but its metadata.
		e.table.IncludeObject = metav1.IncludeMetadata
		defer func() { e.table.IncludeObject = metav1.IncludeNone }()
	}
	return e.object(ctx, object.FromVersioned(codec, o))
}

func (e *watchEncoder) status(err error) []byte {
	status := statusOf(err)
	if e.mediaType() == object.Protobuf {
		if data, err := protoEnvelope(status); err == nil {
			return data
		}
	}
	data, marshalErr := json.Marshal(status)
	if marshalErr != nil {
		return []byte("{}")
	}
	return data
}

// sink is where the frames of a watch go.
type sink interface {
	begin() error
	event(kind watch.EventType, object []byte) error
	flush() error
	end()
}

func (c *call) sink(f format, cancel context.CancelFunc) (sink, error) {
	frame := jsonFrame
	mediaType := object.JSON
	if f.mediaType == object.Protobuf {
		frame, mediaType = protoFrame, object.Protobuf+";stream=watch"
	}
	if websocket.IsWebSocketUpgrade(c.req) {
		return &socketSink{call: c, cancel: cancel, frame: frame, text: f.mediaType != object.Protobuf}, nil
	}
	if f.mediaType == object.YAML {
		return nil, notAcceptable([]string{object.JSON, object.Protobuf})
	}
	return &streamSink{w: c.w, flusher: http.NewResponseController(c.w), frame: frame, mediaType: mediaType, buffers: &c.s.frames}, nil
}

// framing appends one event to b.
type framing func(b *bytes.Buffer, kind watch.EventType, object []byte)

func jsonFrame(b *bytes.Buffer, kind watch.EventType, o []byte) {
	b.WriteString(`{"type":"`)
	b.WriteString(string(kind))
	b.WriteString(`","object":`)
	b.Write(bytes.TrimSuffix(o, []byte{'\n'}))
	b.WriteString("}\n")
}

// protoFrame is a length in four bytes, and a WatchEvent message: its type is
// field 1, its object a RawExtension in field 2 with the bytes in field 1.
func protoFrame(b *bytes.Buffer, kind watch.EventType, o []byte) {
	inner := protoHeader(1, len(o))
	outer := append(protoHeader(1, len(kind)), kind...)
	outer = append(outer, protoHeader(2, len(inner)+len(o))...)
	b.Write(binary.BigEndian.AppendUint32(nil, uint32(len(outer)+len(inner)+len(o))))
	b.Write(outer)
	b.Write(inner)
	b.Write(o)
}

// streamSink is a chunked HTTP answer.
type streamSink struct {
	w         http.ResponseWriter
	flusher   *http.ResponseController
	frame     framing
	mediaType string
	buffers   *sync.Pool    // of *bytes.Buffer: most watches rest most of the time
	buf       *bytes.Buffer // nil while there is nothing to write
}

func (k *streamSink) begin() error {
	h := k.w.Header()
	h.Set("Content-Type", k.mediaType)
	h.Set("Cache-Control", "no-cache, private")
	k.w.WriteHeader(http.StatusOK)
	return k.flusher.Flush()
}

// streamBuffer is how much is gathered before it is written although more is to come.
const streamBuffer = 64 << 10

func (k *streamSink) event(kind watch.EventType, o []byte) error {
	if k.buf == nil {
		var ok bool
		if k.buf, ok = k.buffers.Get().(*bytes.Buffer); !ok {
			k.buf = &bytes.Buffer{}
		}
	}
	k.frame(k.buf, kind, o)
	if k.buf.Len() < streamBuffer {
		return nil
	}
	return k.write()
}

func (k *streamSink) write() error {
	if k.buf == nil {
		return nil
	}
	err := writeFrames(k.w, k.buf.Bytes())
	if k.buf.Cap() <= 2*streamBuffer { // one large event shall not be remembered for ever
		k.buf.Reset()
		k.buffers.Put(k.buf)
	}
	k.buf = nil
	return err
}

func (k *streamSink) flush() error {
	if err := k.write(); err != nil {
		return err
	}
	return k.flusher.Flush()
}

func (k *streamSink) end() {}

// socketSink is a WebSocket with one message for each event.
type socketSink struct {
	call *call
	// cancel ends the watch when the client closes the socket.
	cancel context.CancelFunc
	frame  framing
	text   bool
	conn   *websocket.Conn
}

func (k *socketSink) begin() error {
	conn, err := upgradeSocket(k.call.w, k.call.req)
	if err != nil {
		return err
	}
	k.conn = conn
	go func() {
		// Reading answers pings and finds out that the client has gone; it ends
		// at the latest when end closes the connection.
		defer k.cancel()
		for {
			if _, _, err := conn.NextReader(); err != nil {
				return
			}
		}
	}()
	return nil
}

func (k *socketSink) event(kind watch.EventType, o []byte) error {
	var b bytes.Buffer
	message := websocket.TextMessage
	k.frame(&b, kind, o)
	data := b.Bytes()
	if !k.text {
		message = websocket.BinaryMessage
		data = data[4:] // a message has a length of its own
	}
	if err := k.conn.SetWriteDeadline(time.Now().Add(socketWait)); err != nil {
		return err
	}
	return k.conn.WriteMessage(message, bytes.TrimSuffix(data, []byte{'\n'}))
}

func (k *socketSink) flush() error { return nil }

func (k *socketSink) end() {
	_ = k.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
	_ = k.conn.Close() // the client may have closed it first
}

// socketWait is how long a client may take to receive one message.
const socketWait = 30 * time.Second

// upgradeSocket takes the connection over. Browsers may do so from any origin:
// a credential that a script does not have comes with each request, there are no cookies.
func upgradeSocket(w http.ResponseWriter, req *http.Request) (*websocket.Conn, error) {
	u := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }, Subprotocols: []string{"base64.binary.k8s.io"}}
	return u.Upgrade(w, req, nil)
}
