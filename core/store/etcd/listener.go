// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"crypto/tls"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"

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
	p.listener = &peerListener{address: address, net: tls.NewListener(clientport.Timed(l), secure)}
	return nil
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
			l.clients.Serve(c)
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
