// SPDX-License-Identifier: Apache-2.0

package dial_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/proxy"

	"github.com/wasmplane/wasmplane/core/dial"
)

// gone is a peer that agrees to a stream, and says its last words when it is gone: they are received only after
// something that was sent to it has been refused.
type gone struct {
	net.Conn // nil: nothing else is called

	mu      sync.Mutex
	written int
	refused chan struct{}
	closed  chan struct{}
	once    sync.Once
	said    int
}

func (g *gone) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.written++
	if g.written == 1 {
		return len(p), nil // the request
	}
	if g.written == 2 {
		close(g.refused)
	}
	return 0, &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)}
}

func (g *gone) Read(p []byte) (int, error) {
	g.mu.Lock()
	g.said++
	n := g.said
	g.mu.Unlock()
	switch n {
	case 1:
		return copy(p, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"), nil
	case 2:
		<-g.refused
		// Whoever gives up on the peer now closes the connection at once.
		select {
		case <-g.closed:
			return 0, net.ErrClosed
		case <-time.After(500 * time.Millisecond):
		}
		return copy(p, "exit 28"), nil
	}
	return 0, io.EOF
}

func (g *gone) Close() error {
	g.once.Do(func() { close(g.closed) })
	return nil
}

func TestLastWordsAreHeardThoughThePeerIsGone(t *testing.T) {
	peer := &gone{refused: make(chan struct{}), closed: make(chan struct{})}
	connect := dial.ToTheEnd(func(context.Context, string, string) (net.Conn, error) { return peer, nil })
	to := &url.URL{Scheme: "http", Host: "192.0.2.1"}
	s := httptest.NewServer(proxy.NewUpgradeAwareHandler(to, &http.Transport{DialContext: connect}, false, true, nil))
	defer s.Close()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", res, err)
	}
	fmt.Fprint(conn, "ping")
	if words, err := io.ReadAll(r); string(words) != "exit 28" {
		t.Errorf("heard %q (%v)", words, err)
	}
}
