// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// quiet is how long nothing may come on a connection before its server is asked whether it answers at all. A node renews its
// lease more often.
const quiet = 12 * time.Second

// watched is a connection to a server that must answer.
type watched struct {
	net.Conn
	of      *Balancer
	network string
	server  string

	timer *time.Timer
	end   context.CancelFunc
	last  atomic.Int64 // when something came last, in nanoseconds; 0 = never
	given atomic.Pointer[SilentError]
	first sync.Once
}

// SilentError is why a connection was given up.
type SilentError struct {
	Server string
	For    time.Duration
}

func (e *SilentError) Error() string {
	return fmt.Sprintf("the server at %s takes connections, and has said nothing for %s: another one is asked", e.Server, e.For)
}

// Timeout has clients try again, as after any connection that is lost.
func (*SilentError) Timeout() bool { return true }

// Temporary implements net.Error.
func (*SilentError) Temporary() bool { return true }

func (b *Balancer) watch(ctx context.Context, conn net.Conn, network, server string) net.Conn {
	w := &watched{Conn: conn, of: b, network: network, server: server}
	ctx, w.end = context.WithCancel(context.WithoutCancel(ctx)) // the question to the server ends with the connection
	w.timer = time.AfterFunc(b.patience(), func() { w.judge(ctx) })
	return w
}

// Read tells that the server lives, the first time that it has been chosen well.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.last.Store(time.Now().UnixNano())
		w.first.Do(func() {
			w.of.prefer(w.server)
			w.timer.Reset(quiet)
		})
	}
	return n, w.reason(err)
}

// Write implements net.Conn.
func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	return n, w.reason(err)
}

// reason says instead of "closed" why.
func (w *watched) reason(err error) error {
	if given := w.given.Load(); err != nil && given != nil {
		return given
	}
	return err
}

// Close implements net.Conn.
func (w *watched) Close() error {
	w.end()
	w.timer.Stop()
	return w.Conn.Close()
}

// judge is when something should have come. A server that has never answered on this connection is silent; another one may have
// had nothing to say.
func (w *watched) judge(ctx context.Context) {
	last := w.last.Load()
	since := time.Since(time.Unix(0, last))
	lives := false
	switch {
	case last == 0:
		since = w.of.patience()
	case since < quiet:
		w.timer.Reset(quiet - since)
		return
	default:
		lives = w.of.answers(ctx, w.network, w.server)
	}
	if ctx.Err() != nil {
		return
	}
	if lives || w.last.Load() != last || !w.of.doubt(w.server) {
		w.timer.Reset(quiet)
		return
	}
	since = since.Round(time.Second)
	w.of.cfg.Log.WarnContext(ctx, "a server takes connections and does not answer; another one is asked",
		"server", w.server, "silentFor", since)
	w.given.Store(&SilentError{w.server, since})
	_ = w.Close()
}

// answers tells whether a server talks TLS, on a connection of its own.
func (b *Balancer) answers(ctx context.Context, network, server string) bool {
	ctx, cancel := context.WithTimeout(ctx, b.patience())
	defer cancel()
	return Answering(ctx, func(ctx context.Context) (net.Conn, error) { return b.cfg.Dial(ctx, network, server) }) == nil
}

// patience is how long a server may take to answer: longer after each that was silent, until one answers, because
// it may be this machine that is slow.
func (b *Balancer) patience() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return attempt << min(b.silent, 2)
}

// doubt puts a server last that was silent; false = there is no other one.
func (b *Balancer) doubt(server string) bool {
	if len(b.Servers()) < 2 {
		return false
	}
	b.last(server)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silent++
	return true
}

// last has a server be asked after all others.
func (b *Balancer) last(server string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.servers, server); i >= 0 {
		b.servers = append(slices.Delete(b.servers, i, i+1), server)
	}
}

// Answering fails where a server does not talk TLS until ctx ends: the system accepts connections for a process that is stopped,
// too. What the server says of itself is for the caller to judge: the connection that is tried has carried nothing, and is closed.
func Answering(ctx context.Context, dial func(context.Context) (net.Conn, error)) error {
	tried, err := dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tried.Close() }()
	err = tls.Client(tried, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx) //nolint:gosec // as said
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("the server at %s is silent: %w", tried.RemoteAddr(), err)
	}
	return nil
}
