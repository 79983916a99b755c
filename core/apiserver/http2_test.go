// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/apiserver"
	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
)

// frames is a client that speaks HTTP/2 frame by frame, as an attacker does.
type frames struct {
	*testing.T
	*http2.Framer
	conn    *tls.Conn
	streams uint32
}

func dialFrames(t *testing.T, s *apiservertest.Server) *frames {
	t.Helper()
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{http2.NextProtoTLS}}} //nolint:gosec // the test's own server
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(s.URL, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	f := &frames{T: t, Framer: http2.NewFramer(conn, conn), conn: conn.(*tls.Conn)}
	if f.conn.ConnectionState().NegotiatedProtocol != http2.NextProtoTLS {
		t.Fatal("the server speaks no HTTP/2")
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return f
}

// get opens a stream for a request; what the server says to it comes as frames.
func (f *frames) get(path, token string) (stream uint32, err error) {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	fields := []string{":method", http.MethodGet, ":scheme", "https", ":authority", "localhost", ":path", path}
	if token != "" {
		fields = append(fields, "authorization", "Bearer "+token)
	}
	for i := 0; i < len(fields); i += 2 {
		if err := e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			f.Fatal(err)
		}
	}
	stream = 2*f.streams + 1
	f.streams++
	return stream, f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
}

// until reads frames up to the first that is wanted.
func (f *frames) until(what string, wanted func(http2.Frame) bool) {
	f.Helper()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			f.Fatalf("no %s came: %v", what, err)
		}
		if wanted(frame) {
			return
		}
	}
}

// ended reads up to the connection's end. It returns how many answers and GOAWAYs
// came, and the code of the last.
func (f *frames) ended() (answers, goAways int, code http2.ErrCode) {
	f.Helper()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			var timeout interface{ Timeout() bool }
			if errors.As(err, &timeout) && timeout.Timeout() {
				f.Fatalf("the connection lives on: %v", err)
			}
			return answers, goAways, code
		}
		switch frame := frame.(type) {
		case *http2.GoAwayFrame:
			goAways, code = goAways+1, frame.ErrCode
		case *http2.HeadersFrame:
			answers++
		}
	}
}

// A connection has as many streams as upstream's, so that what one of them can ask
// for at once is bounded.
func TestStreamsOfAConnectionAreBounded(t *testing.T) {
	f := dialFrames(t, apiservertest.Start(t, apiservertest.Options{}))
	f.until("SETTINGS", func(frame http2.Frame) bool {
		settings, ok := frame.(*http2.SettingsFrame)
		if !ok || settings.IsAck() {
			return false
		}
		if most, ok := settings.Value(http2.SettingMaxConcurrentStreams); !ok || most != 100 {
			t.Errorf("a connection may have %d streams (%t), want 100", most, ok)
		}
		return true
	})
}

// Who is not known, or anonymous, keeps no connection of HTTP/2; who is known does,
// a refusal notwithstanding.
func TestStrangersKeepNoConnection(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{Server: func(c *apiserver.Config) {
		tokens := c.Authenticator
		c.Authenticator = authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
			if r.URL.Path == "/version" {
				return &authenticator.Response{User: &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}}, true, nil
			}
			return tokens.AuthenticateRequest(r)
		})
	}})
	for _, path := range []string{"/api/v1/pods", "/version"} {
		f := dialFrames(t, s)
		if _, err := f.get(path, ""); err != nil {
			t.Fatal(err)
		}
		if answers, goAways, code := f.ended(); answers != 1 || goAways == 0 || code != http2.ErrCodeNo {
			t.Errorf("%s: %d answers, %d GOAWAYs, the last with %v", path, answers, goAways, code)
		}
	}
	f := dialFrames(t, s)
	for _, path := range []string{"/api/v1/pods", "/nothing", "/api/v1/pods"} {
		stream, err := f.get(path, "jane")
		if err != nil {
			t.Fatal(err)
		}
		f.until("answer to "+path, func(frame http2.Frame) bool {
			if frame.Header().Type == http2.FrameGoAway {
				t.Fatalf("jane lost her connection after %s", path)
			}
			return frame.Header().Type == http2.FrameHeaders && frame.Header().StreamID == stream
		})
	}
}

// CVE-2023-44487: a stranger that opens and resets streams in one breath is cut off
// after the first answer, however many there are.
func TestARapidResetOfStrangersIsCutOff(t *testing.T) {
	var asked atomic.Int64
	s := apiservertest.Start(t, apiservertest.Options{Server: func(c *apiserver.Config) {
		c.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			asked.Add(1)
			return nil, false, nil
		})
	}})
	const opened = 20_000
	f := dialFrames(t, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range opened {
			stream, err := f.get("/api/v1/pods", "")
			if err != nil || f.WriteRSTStream(stream, http2.ErrCodeCancel) != nil {
				return // cut off
			}
		}
	}()
	f.ended()
	<-done
	if n := asked.Load(); n == 0 || n > opened/10 {
		t.Errorf("%d of %d requests that were taken back were handled", n, opened)
	}
}

// However fast streams are reset, handlers that are not done are no more than a
// connection may have streams, and who keeps on is cut off.
func TestAResetFreesNoHandler(t *testing.T) {
	var now, most atomic.Int64
	leave := make(chan struct{})
	s := apiservertest.Start(t, apiservertest.Options{Server: func(c *apiserver.Config) {
		c.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			n := now.Add(1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			<-leave
			now.Add(-1)
			return nil, false, nil
		})
	}})
	defer close(leave)
	f := dialFrames(t, s)
	go func() {
		for range 3000 {
			stream, err := f.get("/api/v1/pods", "")
			if err != nil || f.WriteRSTStream(stream, http2.ErrCodeCancel) != nil {
				return // cut off
			}
		}
	}()
	f.ended()
	if n := most.Load(); n == 0 || n > 100 {
		t.Errorf("%d requests of one connection were handled at once, want 100 at most", n)
	}
}
