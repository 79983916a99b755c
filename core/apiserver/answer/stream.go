// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/wasmplane/wasmplane/core/api/envelope"
	"github.com/wasmplane/wasmplane/core/lent"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/run"
)

// Stream is the answer to a watch. One goroutine at a time may use it.
type Stream interface {
	// Begin sends what comes before all events. An error means that the client
	// has gone; the other methods may be called if there was none.
	Begin() error
	// Event adds an event, which may be sent by this call or by Flush.
	Event(e Event) error
	// Flush sends what was added.
	Flush() error
	// End is the last call.
	End()
}

// Stream makes the stream of a watch: a chunked answer, or a WebSocket where the
// client asks for one. A client in the process that takes them is lent the objects (package lent).
// cancel is called when a client closes its WebSocket.
func (a *Writer) Stream(w http.ResponseWriter, req *http.Request, f Format, cancel context.CancelFunc) (Stream, error) {
	frame := jsonFrame
	mediaType := object.JSON
	if f.MediaType == object.Protobuf {
		frame, mediaType = protoFrame, object.Protobuf+";stream=watch"
	}
	if websocket.IsWebSocketUpgrade(req) {
		return &socketStream{w: w, req: req, cancel: cancel, frame: frame, text: f.MediaType != object.Protobuf}, nil
	}
	if f.MediaType == object.YAML {
		return nil, NotAcceptable([]string{object.JSON, object.Protobuf})
	}
	k := &chunkedStream{w: w, flusher: http.NewResponseController(w), frame: frame, mediaType: mediaType, buffers: &a.frames}
	if l := lent.From(req.Context()); l != nil && f.MediaType == object.Protobuf && f.Convert.Empty() {
		k.lender, k.mediaType = l, lent.MediaType+";stream=watch"
	}
	return k, nil
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

// Fields of WatchEvent, and of the RawExtension that holds its object.
const (
	eventTypeField   = 1
	eventObjectField = 2
	rawObjectField   = 1
)

// protoFrame is a length in four bytes, and a WatchEvent message.
func protoFrame(b *bytes.Buffer, kind watch.EventType, o []byte) {
	raw := envelope.Header(rawObjectField, len(o))
	head := append(envelope.Header(eventTypeField, len(kind)), kind...)
	head = envelope.AppendHeader(head, eventObjectField, len(raw)+len(o))
	b.Write(binary.BigEndian.AppendUint32(nil, uint32(len(head)+len(raw)+len(o))))
	b.Write(head)
	b.Write(raw)
	b.Write(o)
}

// chunkedStream is a chunked HTTP answer.
type chunkedStream struct {
	w         http.ResponseWriter
	flusher   *http.ResponseController
	frame     framing
	mediaType string
	lender    lent.Lender   // nil = the objects are in the frames
	buffers   *sync.Pool    // of *bytes.Buffer: most watches rest most of the time
	buf       *bytes.Buffer // nil while there is nothing to write
	lent      int           // what the references in buf stand for, in bytes
}

func (k *chunkedStream) Begin() error {
	h := k.w.Header()
	h.Set("Content-Type", k.mediaType)
	h.Set("Cache-Control", "no-cache, private")
	k.w.WriteHeader(http.StatusOK)
	return k.flusher.Flush()
}

// streamBuffer is how much is gathered before it is written although more is to come.
const streamBuffer = 64 << 10

func (k *chunkedStream) Event(e Event) error {
	if k.buf == nil {
		var ok bool
		if k.buf, ok = k.buffers.Get().(*bytes.Buffer); !ok {
			k.buf = &bytes.Buffer{}
		}
	}
	if k.lender != nil && e.Whole != nil {
		k.lent += len(e.Data)
		e.Data = k.lender.Lend(e.Whole, len(e.Data))
	}
	k.frame(k.buf, e.Type, e.Data)
	if k.buf.Len()+k.lent < streamBuffer {
		return nil
	}
	return k.write()
}

func (k *chunkedStream) write() error {
	if k.buf == nil {
		return nil
	}
	err := writeFrames(k.w, k.buf.Bytes())
	if k.buf.Cap() <= 2*streamBuffer { // one large event shall not be remembered for ever
		k.buf.Reset()
		k.buffers.Put(k.buf)
	}
	k.buf, k.lent = nil, 0
	return err
}

func (k *chunkedStream) Flush() error {
	if err := k.write(); err != nil {
		return err
	}
	return k.flusher.Flush()
}

func (k *chunkedStream) End() {}

// socketStream is a WebSocket with one message for each event.
type socketStream struct {
	w   http.ResponseWriter
	req *http.Request
	// cancel ends the watch when the client closes the socket.
	cancel context.CancelFunc
	frame  framing
	text   bool
	conn   *websocket.Conn
}

func (k *socketStream) Begin() error {
	conn, err := upgradeSocket(k.w, k.req)
	if err != nil {
		return err
	}
	k.conn = conn
	run.Go("watch over a web socket: read", func() error {
		// Reading answers pings and finds out that the client has gone; it ends
		// at the latest when end closes the connection.
		defer k.cancel()
		for {
			if _, _, err := conn.NextReader(); err != nil {
				return err
			}
		}
	})
	return nil
}

func (k *socketStream) Event(e Event) error {
	var b bytes.Buffer
	message := websocket.TextMessage
	k.frame(&b, e.Type, e.Data)
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

func (k *socketStream) Flush() error { return nil }

func (k *socketStream) End() {
	_ = k.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""),
		time.Now().Add(time.Second))
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
