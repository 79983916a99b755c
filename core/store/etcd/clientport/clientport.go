// SPDX-License-Identifier: Apache-2.0

// Package clientport serves the store of a member to servers that keep no part of it: light servers. They come by
// the port at which the other members reach this one, and show certificates of the same authority that are good for
// clients alone, so that they can never take part in what members say among themselves.
//
// It promises that such a server reads, writes and watches keys, and sees which members there are and how they
// are; it cannot change who is a member, nor anything else about the store. Each call, and each message of
// a stream, is looked at: a server that was removed is refused in the middle of a watch.
package clientport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/wasmplane/wasmplane/core/store"
)

// Protocol is what a light server's connections agree on in their TLS handshake; those of members agree on another.
const Protocol = "h2"

// Admit says why the server of that name, whose certificate began then, may not use the store. store.ErrRemoved is final,
// and its calls fail with codes.PermissionDenied. Another error means that it is not known just now; another member may know it.
type Admit func(ctx context.Context, name string, begins time.Time) error

// methods are the calls that a light server needs for a store.Store.
var methods = []string{
	"/etcdserverpb.KV/Range", "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Compact",
	"/etcdserverpb.Lease/LeaseGrant",
	"/etcdserverpb.Watch/Watch",
	"/etcdserverpb.Cluster/MemberList",
	"/etcdserverpb.Maintenance/Status", "/etcdserverpb.Maintenance/Snapshot",
}

const (
	// soonest is how often a client may ask whether the connection stands, as etcd has it.
	soonest = 5 * time.Second
	// idle and silent are when the server asks, and how long it waits for the answer.
	idle, silent = 2 * time.Hour, 20 * time.Second
)

// ForClient tells whether a certificate is a light server's: a member's is good for servers, too.
func ForClient(c *x509.Certificate) bool {
	return !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
}

// Server answers light servers.
type Server struct {
	grpc  *grpc.Server
	conns *handed
	ended chan struct{}
}

// New serves the store of e to those that admit lets in, until Close.
func New(e *etcdserver.EtcdServer, admit Admit) *Server {
	g := guard{admit}
	return &Server{
		grpc: v3rpc.Server(e, nil, nil, grpc.Creds(shaken{}), grpc.ChainUnaryInterceptor(g.call), grpc.ChainStreamInterceptor(g.stream),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: soonest}),
			grpc.KeepaliveParams(keepalive.ServerParameters{Time: idle, Timeout: silent})),
		conns: &handed{next: make(chan net.Conn), closed: make(chan struct{})}, ended: make(chan struct{}),
	}
}

// Run accepts connections until Close.
func (s *Server) Run() error {
	defer close(s.ended)
	return s.grpc.Serve(s.conns)
}

// Serve answers a connection whose TLS handshake is done, and returns when it has ended.
func (s *Server) Serve(c *tls.Conn) {
	if timed, ok := c.NetConn().(*timedConn); ok && timed.unbound() != nil {
		_ = c.Close()
		return
	}
	one := &conn{Conn: c, tls: c, closed: make(chan struct{})}
	select {
	case s.conns.next <- one:
		<-one.closed
	case <-s.conns.closed:
	case <-s.ended:
	}
	_ = one.Close()
}

// Close ends all connections.
func (s *Server) Close() { s.grpc.Stop() }

// handed is a listener whose connections another one has accepted.
type handed struct {
	next   chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// Accept implements net.Listener.
func (h *handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.next:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handed) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr implements net.Listener; it listens nowhere itself.
func (h *handed) Addr() net.Addr { return &net.TCPAddr{} }

// conn says when it is closed.
type conn struct {
	net.Conn
	tls    *tls.Conn
	once   sync.Once
	closed chan struct{}
}

// Close implements net.Conn.
func (c *conn) Close() (err error) {
	c.once.Do(func() {
		err = c.Conn.Close()
		close(c.closed)
	})
	return err
}

// shaken are credentials of connections whose handshake is done.
type shaken struct{}

// ServerHandshake implements credentials.TransportCredentials.
func (shaken) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	one, ok := c.(*conn)
	if !ok {
		return nil, nil, errors.New("the connection has no TLS")
	}
	return c, credentials.TLSInfo{
		State: one.tls.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// ClientHandshake implements credentials.TransportCredentials, for servers alone.
func (shaken) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a server's")
}

// Info implements credentials.TransportCredentials.
func (shaken) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (s shaken) Clone() credentials.TransportCredentials { return s }

// OverrideServerName implements credentials.TransportCredentials.
func (shaken) OverrideServerName(string) error { return nil }

// guard looks at each call.
type guard struct{ admit Admit }

func (g guard) call(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := g.check(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handle(ctx, req)
}

func (g guard) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := g.check(s.Context(), info.FullMethod); err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(s.Context())
	defer end(nil)
	err := handle(srv, &stream{s, ctx, end, func() error { return g.check(s.Context(), info.FullMethod) }})
	if refused := context.Cause(ctx); status.Code(refused) == codes.PermissionDenied || status.Code(refused) == codes.Unavailable {
		return refused
	}
	return err
}

// stream looks again with each message that it sends. A message that is refused ends it: who serves a watch does not
// end by an error of SendMsg alone.
type stream struct {
	grpc.ServerStream
	ctx   context.Context //nolint:containedctx // it is the stream's
	end   context.CancelCauseFunc
	check func() error
}

// Context implements grpc.ServerStream.
func (s *stream) Context() context.Context { return s.ctx }

// SendMsg implements grpc.ServerStream.
func (s *stream) SendMsg(m any) error {
	if err := s.check(); err != nil {
		s.end(err)
		return err
	}
	return s.ServerStream.SendMsg(m)
}

// check is an error of gRPC for what the caller may not do.
func (g guard) check(ctx context.Context, method string) error {
	if !slices.Contains(methods, method) {
		return status.Errorf(codes.PermissionDenied, "%s is for servers that keep the store", method)
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return status.Error(codes.Unauthenticated, "the connection has no peer")
	}
	shown, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(shown.State.PeerCertificates) == 0 {
		return status.Error(codes.Unauthenticated, "the connection shows no certificate")
	}
	leaf := shown.State.PeerCertificates[0]
	err := g.admit(ctx, leaf.Subject.CommonName, leaf.NotBefore)
	switch {
	case errors.Is(err, store.ErrRemoved):
		return status.Error(codes.PermissionDenied, err.Error())
	case err != nil:
		return status.Errorf(codes.Unavailable, "whether server %s was removed is not known yet: %v", leaf.Subject.CommonName, err)
	}
	return nil
}
