// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"crypto/tls"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store/etcd/clientport"
)

// peerListener is where other members reach this one. etcd would open it at its start
// only; this one is opened when the second server comes, and the store goes on.
type peerListener struct {
	address string
	net     net.Listener
	http    *http.Server // nil = connections wait until there is a store
	served  <-chan error
	clients *clientport.Server // nil = none are let in, or there is no store yet
}

// listen takes the address. Where it is taken already by this member nothing is done.
func (p *peers) listen(address string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		if p.listener.address != address {
			return fmt.Errorf("other servers reach this one at %s already, and not at %s", p.listener.address, address)
		}
		return nil
	}
	secure, err := p.tls()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address) //nolint:noctx // it takes no time
	if err != nil {
		return fmt.Errorf("listen for the other servers' stores: %w; choose another port by store.peerPort", err)
	}
	p.listener = &peerListener{address: address, net: tls.NewListener(timedListener{l}, secure)}
	return nil
}

// timedListener bounds each read and write of its connections: those to a machine that is gone end, instead of taking what
// is sent to it.
type timedListener struct{ net.Listener }

// Accept implements net.Listener.
func (l timedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &timedConn{Conn: c}, nil
}

// timedConn is one of them. A light server's is quiet for as long as nothing is asked, and has bounds of its own.
type timedConn struct {
	net.Conn
	free atomic.Bool
}

// Read implements net.Conn.
func (c *timedConn) Read(b []byte) (int, error) {
	if !c.free.Load() {
		if err := c.SetReadDeadline(time.Now().Add(rafthttp.ConnReadTimeout)); err != nil {
			return 0, err
		}
	}
	return c.Conn.Read(b)
}

// Write implements net.Conn.
func (c *timedConn) Write(b []byte) (int, error) {
	if !c.free.Load() {
		if err := c.SetWriteDeadline(time.Now().Add(rafthttp.ConnWriteTimeout)); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(b)
}

// unbound ends the bounds.
func (c *timedConn) unbound() error {
	c.free.Store(true)
	return c.SetDeadline(time.Time{})
}

// serve answers other members from now on.
func (p *peers) serve(e *embed.Etcd) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.listener
	if l == nil || l.http != nil {
		return
	}
	l.http = &http.Server{
		Handler: etcdhttp.NewPeerHandler(e.GetLogger(), e.Server), ReadTimeout: 5 * time.Minute, // streams begin anew after that
		ErrorLog: stdlog.New(io.Discard, "", 0), // strangers who knock are no news
	}
	l.http.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	if p.cfg.Admit != nil {
		l.clients = clientport.New(e.Server, p.cfg.Admit)
		_ = run.Go("etcd clients", l.clients.Run) // until close
		l.http.TLSNextProto[clientport.Protocol] = func(_ *http.Server, c *tls.Conn, _ http.Handler) {
			if timed, ok := c.NetConn().(*timedConn); ok && timed.unbound() == nil {
				l.clients.Serve(c)
			}
		}
	}
	l.served = run.Go("etcd peers", func() error { return l.http.Serve(l.net) }) // until close
}

// close hangs up. Streams of other members never end by themselves.
func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return
	}
	if p.listener.http == nil {
		_ = p.listener.net.Close()
		return
	}
	_ = p.listener.http.Close()
	if p.listener.clients != nil {
		p.listener.clients.Close()
	}
	select {
	case <-p.listener.served:
	case <-time.After(answering):
	}
}
