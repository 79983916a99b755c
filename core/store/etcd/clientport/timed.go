// SPDX-License-Identifier: Apache-2.0

package clientport

import (
	"net"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
)

// Timed bounds each read and write of a listener's connections: those to a machine that is gone end, instead of taking
// what is sent to it. Serve ends the bounds of the connection that it is given.
func Timed(l net.Listener) net.Listener { return timedListener{l} }

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
