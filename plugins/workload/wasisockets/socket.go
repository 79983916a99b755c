// SPDX-License-Identifier: Apache-2.0

// Package wasisockets is wasi:sockets of WASI 0.2: TCP, and names. UDP is refused.
package wasisockets

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/component/canon"
	"github.com/wasmplane/wasmplane/plugins/component/link"
	"github.com/wasmplane/wasmplane/plugins/workload/wasiio"
)

const (
	sockets = "wasi:sockets/"
	tcp     = sockets + "tcp"
	lookup  = sockets + "ip-name-lookup"
)

// Cases of wasi:sockets/network.error-code.
const (
	netUnknown         = 0
	netDenied          = 1
	netNotSupported    = 2
	netInvalid         = 3
	netTimeout         = 5
	netNotInProgress   = 7
	netWouldBlock      = 8
	netInvalidState    = 9
	netNotBindable     = 11
	netInUse           = 12
	netUnreachable     = 13
	netRefused         = 14
	netReset           = 15
	netNoName          = 18
	netTemporaryLookup = 19
)

// Functions are those of wasi:sockets.
var Functions = wasiio.Join(
	wasiio.In(sockets+"instance-network", map[string]wasiio.Function{"instance-network": func(w *wasiio.Table, c *link.Call, _ []any) any {
		return w.Give(c, sockets+"network", "network", struct{}{})
	}}),
	wasiio.In(sockets+"udp-create-socket", map[string]wasiio.Function{
		"create-udp-socket": wasiio.Constant(canon.Error(wasiio.Enum(netNotSupported))),
	}),
	wasiio.In(sockets+"tcp-create-socket", map[string]wasiio.Function{"create-tcp-socket": func(w *wasiio.Table, c *link.Call,
		args []any,
	) any {
		return canon.OK(w.Give(c, tcp, "tcp-socket", &socket{six: link.Arg[canon.Variant](args, 0).Case == 1}))
	}}),
	wasiio.In(tcp, map[string]wasiio.Function{
		"[method]tcp-socket.start-bind": onSocket(func(s *socket, _ *wasiio.Table, _ *link.Call, args []any) (any, error) {
			return nil, s.bind(address(args, 2))
		}),
		"[method]tcp-socket.finish-bind": step(binding, bound),
		"[method]tcp-socket.start-connect": onSocket(func(s *socket, _ *wasiio.Table, _ *link.Call, args []any) (any, error) {
			return nil, s.connect(address(args, 2))
		}),
		"[method]tcp-socket.finish-connect": onSocket(finishConnect),
		"[method]tcp-socket.start-listen": onSocket(func(s *socket, _ *wasiio.Table, _ *link.Call, _ []any) (any, error) {
			return nil, s.listen()
		}),
		"[method]tcp-socket.finish-listen": step(starting, listening),
		"[method]tcp-socket.accept":        onSocket(accept),
		"[method]tcp-socket.local-address": onSocket(func(s *socket, _ *wasiio.Table, _ *link.Call, _ []any) (any, error) {
			switch conn := s.connection(); {
			case conn != nil:
				return written(conn.LocalAddr())
			case s.listener != nil:
				return written(s.listener.Addr())
			}
			return nil, state(netInvalidState)
		}),
		"[method]tcp-socket.remote-address": onSocket(func(s *socket, _ *wasiio.Table, _ *link.Call, _ []any) (any, error) {
			conn := s.connection()
			if conn == nil {
				return nil, state(netInvalidState)
			}
			return written(conn.RemoteAddr())
		}),
		"[method]tcp-socket.is-listening": func(w *wasiio.Table, _ *link.Call, args []any) any {
			return wasiio.Resource[*socket](w, args, 0).phase == listening
		},
		"[method]tcp-socket.address-family": func(w *wasiio.Table, _ *link.Call, args []any) any {
			if wasiio.Resource[*socket](w, args, 0).six {
				return wasiio.Enum(1)
			}
			return wasiio.Enum(0)
		},
		"[method]tcp-socket.set-listen-backlog-size": wasiio.OK,
		"[method]tcp-socket.keep-alive-enabled": onSocket(func(s *socket, _ *wasiio.Table, _ *link.Call, _ []any) (any, error) {
			return s.keepAlive.Enable, nil
		}),
		"[method]tcp-socket.set-keep-alive-enabled": onSocket(func(s *socket, _ *wasiio.Table, _ *link.Call, args []any) (any, error) {
			s.keepAlive.Enable = link.Arg[bool](args, 1)
			return nil, s.applyKeepAlive()
		}),
		"[method]tcp-socket.keep-alive-idle-time": onSocket(func(s *socket, _ *wasiio.Table, _ *link.Call, _ []any) (any, error) {
			return uint64(s.keepAlive.Idle), nil
		}),
		"[method]tcp-socket.set-keep-alive-idle-time": onSocket(func(s *socket, _ *wasiio.Table, _ *link.Call, args []any) (any, error) {
			s.keepAlive.Idle = max(wasiio.Duration(link.Arg[uint64](args, 1)), time.Second)
			return nil, s.applyKeepAlive()
		}),
		"[method]tcp-socket.keep-alive-interval": onSocket(func(s *socket, _ *wasiio.Table, _ *link.Call, _ []any) (any, error) {
			return uint64(s.keepAlive.Interval), nil
		}),
		"[method]tcp-socket.set-keep-alive-interval": onSocket(func(s *socket, _ *wasiio.Table, _ *link.Call, args []any) (any, error) {
			s.keepAlive.Interval = max(wasiio.Duration(link.Arg[uint64](args, 1)), time.Second)
			return nil, s.applyKeepAlive()
		}),
		"[method]tcp-socket.keep-alive-count": onSocket(func(s *socket, _ *wasiio.Table, _ *link.Call, _ []any) (any, error) {
			return uint32(s.keepAlive.Count), nil
		}),
		"[method]tcp-socket.set-keep-alive-count": onSocket(func(s *socket, _ *wasiio.Table, _ *link.Call, args []any) (any, error) {
			s.keepAlive.Count = int(min(link.Arg[uint32](args, 1), 127))
			return nil, s.applyKeepAlive()
		}),
		"[method]tcp-socket.hop-limit":               wasiio.Constant(canon.OK(uint8(64))),
		"[method]tcp-socket.set-hop-limit":           wasiio.Constant(canon.Error(wasiio.Enum(netNotSupported))),
		"[method]tcp-socket.receive-buffer-size":     wasiio.Constant(canon.OK(uint64(wasiio.Most))),
		"[method]tcp-socket.set-receive-buffer-size": wasiio.OK,
		"[method]tcp-socket.send-buffer-size":        wasiio.Constant(canon.OK(uint64(wasiio.Most))),
		"[method]tcp-socket.set-send-buffer-size":    wasiio.OK,
		"[method]tcp-socket.subscribe":               wasiio.Subscribe,
		"[method]tcp-socket.shutdown": onSocket(func(s *socket, _ *wasiio.Table, _ *link.Call, args []any) (any, error) {
			return nil, s.shutdown(link.Arg[canon.Variant](args, 1).Case)
		}),
	}),
	wasiio.In(lookup, map[string]wasiio.Function{
		"resolve-addresses": func(w *wasiio.Table, c *link.Call, args []any) any {
			return canon.OK(w.Give(c, lookup, "resolve-address-stream", resolve(link.Arg[string](args, 1))))
		},
		"[method]resolve-address-stream.resolve-next-address": func(w *wasiio.Table, _ *link.Call, args []any) any {
			return wasiio.Resource[*names](w, args, 0).next()
		},
		"[method]resolve-address-stream.subscribe": wasiio.Subscribe,
	}),
)

// state is an error-code that is none of the system's.
type state uint32

func (s state) Error() string { return "the socket is not in a state for this" }

// netCode is the case of error-code that an error is.
func netCode(err error) canon.Variant {
	var s state
	var name *net.DNSError
	switch {
	case errors.As(err, &s):
		return wasiio.Enum(uint32(s))
	case errors.As(err, &name) && name.IsNotFound:
		return wasiio.Enum(netNoName)
	case errors.As(err, &name):
		return wasiio.Enum(netTemporaryLookup)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return wasiio.Enum(netTimeout)
	}
	for number, n := range map[syscall.Errno]uint32{
		syscall.EACCES: netDenied, syscall.EPERM: netDenied, syscall.EINVAL: netInvalid, syscall.EADDRNOTAVAIL: netNotBindable,
		syscall.EADDRINUSE: netInUse, syscall.ENETUNREACH: netUnreachable, syscall.EHOSTUNREACH: netUnreachable,
		syscall.ECONNREFUSED: netRefused, syscall.ECONNRESET: netReset,
	} {
		if errors.Is(err, number) {
			return wasiio.Enum(n)
		}
	}
	return wasiio.Enum(netUnknown)
}

func onSocket(f func(s *socket, w *wasiio.Table, c *link.Call, args []any) (any, error)) wasiio.Function {
	return func(w *wasiio.Table, c *link.Call, args []any) any {
		v, err := f(wasiio.Resource[*socket](w, args, 0), w, c, args)
		if err != nil {
			return canon.Error(netCode(err))
		}
		return canon.OK(v)
	}
}

type phase uint8

const (
	fresh phase = iota
	binding
	bound
	connecting
	connected
	starting
	listening
)

// socket is a TCP socket. Its connection is made, and others' are accepted, beside the component.
type socket struct {
	six       bool
	phase     phase
	listener  net.Listener
	keepAlive net.KeepAliveConfig

	wasiio.Signal // guards what follows
	conn          net.Conn
	failed        error // why there is no connection, or none to accept
	done          bool  // the connection is there, or has failed
	inbox         net.Conn
	gone          bool
}

// connection is the socket's; nil = none yet.
func (s *socket) connection() net.Conn {
	s.Lock()
	defer s.Unlock()
	return s.conn
}

func (s *socket) network() string {
	if s.six {
		return "tcp6"
	}
	return "tcp4"
}

// step ends what was begun: it has been done by then.
func step(from, to phase) wasiio.Function {
	return onSocket(func(s *socket, _ *wasiio.Table, _ *link.Call, _ []any) (any, error) {
		if s.phase != from {
			return nil, state(netNotInProgress)
		}
		s.phase = to
		return nil, nil
	})
}

// bind takes an address. The system listens on it from here on: connections wait until the component accepts them.
func (s *socket) bind(at netip.AddrPort) error {
	if s.phase != fresh {
		return state(netInvalidState)
	}
	if at.Addr().Is6() != s.six {
		return state(netInvalid)
	}
	l, err := net.Listen(s.network(), at.String()) //nolint:noctx // of an address: nothing is waited for
	if err != nil {
		return err
	}
	s.listener, s.phase = l, binding
	return nil
}

func (s *socket) connect(to netip.AddrPort) error {
	if s.phase != fresh && s.phase != bound {
		return state(netInvalidState)
	}
	if to.Addr().Is6() != s.six || to.Port() == 0 || to.Addr().IsUnspecified() {
		return state(netInvalid)
	}
	d := net.Dialer{Timeout: wasiio.MostDial, KeepAliveConfig: s.keepAlive}
	if s.listener != nil {
		d.LocalAddr = s.listener.Addr()
		if err := s.listener.Close(); err != nil {
			return err
		}
		s.listener = nil
	}
	s.phase = connecting
	run.Go("a connection", func() error {
		conn, err := d.Dial(s.network(), to.String())
		s.Change(func() {
			s.conn, s.failed, s.done = conn, err, true
			if s.gone && conn != nil {
				_ = conn.Close()
			}
		})
		return nil
	})
	return nil
}

func finishConnect(s *socket, w *wasiio.Table, c *link.Call, _ []any) (any, error) {
	s.Lock()
	defer s.Unlock()
	switch {
	case s.phase != connecting:
		return nil, state(netNotInProgress)
	case !s.done:
		return nil, state(netWouldBlock)
	case s.failed != nil:
		err := s.failed
		s.phase, s.failed, s.done = fresh, nil, false
		return nil, err
	}
	s.phase = connected
	in, out := ends(w, c, s.conn)
	return []any{in, out}, nil
}

// ends are the streams of a connection.
func ends(w *wasiio.Table, c *link.Call, conn net.Conn) (in, out *canon.Handle) {
	return w.Give(c, wasiio.Streams, wasiio.InputStream, wasiio.Pump("a connection's input", conn)),
		w.Give(c, wasiio.Streams, wasiio.OutputStream, wasiio.Direct{W: conn})
}

func (s *socket) listen() error {
	switch {
	case s.phase == fresh: // on a port that the system chooses
		if err := s.bind(netip.AddrPortFrom(unspecified(s.six), 0)); err != nil {
			return err
		}
	case s.phase != bound:
		return state(netInvalidState)
	}
	s.phase = starting
	run.Go("accepting connections", s.accepting)
	return nil
}

// accepting takes one connection after the other as the component accepts them, or learns why there is none: too many
// open files may be fewer later.
func (s *socket) accepting() error {
	for {
		conn, err := s.listener.Accept()
		s.Change(func() { s.inbox, s.failed = conn, err })
		for {
			s.Lock()
			taken, gone, changed := s.inbox == nil && s.failed == nil, s.gone, s.Watch()
			s.Unlock()
			if taken { // also by a component that has dropped the listener since: the connection is its own
				break
			}
			if gone {
				if conn != nil {
					return conn.Close()
				}
				return nil
			}
			<-changed
		}
	}
}

func accept(s *socket, w *wasiio.Table, c *link.Call, _ []any) (any, error) {
	if s.phase != listening {
		return nil, state(netInvalidState)
	}
	var conn net.Conn
	var err error
	s.Change(func() { conn, err, s.inbox, s.failed = s.inbox, s.failed, nil, nil })
	switch {
	case conn != nil:
		in, out := ends(w, c, conn)
		return []any{w.Give(c, tcp, "tcp-socket", &socket{six: s.six, phase: connected, conn: conn, done: true}), in, out}, nil
	case err != nil:
		return nil, err
	}
	return nil, state(netWouldBlock)
}

func (s *socket) Ready() (bool, <-chan struct{}) {
	s.Lock()
	defer s.Unlock()
	switch s.phase {
	case connecting:
		return s.done, s.Watch()
	case listening:
		return s.inbox != nil || s.failed != nil, s.Watch()
	default:
		return true, nil
	}
}

func (s *socket) applyKeepAlive() error {
	if c, is := s.connection().(*net.TCPConn); is {
		return c.SetKeepAliveConfig(s.keepAlive)
	}
	return nil
}

// shutdown ends receiving, sending or both.
func (s *socket) shutdown(how uint32) error {
	c, is := s.connection().(*net.TCPConn)
	if !is {
		return state(netInvalidState)
	}
	var err error
	if how != 1 {
		err = c.CloseRead()
	}
	if how != 0 {
		err = errors.Join(err, c.CloseWrite())
	}
	return err
}

func (s *socket) End() {
	if s.listener != nil {
		_ = s.listener.Close()
	}
	s.Change(func() {
		s.gone = true
		if s.conn != nil {
			_ = s.conn.Close()
		}
	})
}

func unspecified(six bool) netip.Addr {
	if six {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// address is an ip-socket-address.
func address(args []any, i int) netip.AddrPort {
	v := link.Arg[canon.Variant](args, i)
	record, _ := v.Value.([]any)
	port := link.Arg[uint16](record, 0)
	if v.Case == 0 {
		var b [4]byte
		for i := range b {
			b[i] = link.Arg[uint8](link.Arg[[]any](record, 1), i)
		}
		return netip.AddrPortFrom(netip.AddrFrom4(b), port)
	}
	var b [16]byte
	for i := range 8 {
		part := link.Arg[uint16](link.Arg[[]any](record, 2), i)
		b[2*i], b[2*i+1] = byte(part>>8), byte(part)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(b), port)
}

// written is an ip-socket-address.
func written(a net.Addr) (any, error) {
	at, is := a.(*net.TCPAddr)
	if !is {
		return nil, state(netUnknown)
	}
	ip := at.AddrPort().Addr().Unmap()
	port := at.AddrPort().Port()
	if ip.Is4() {
		return canon.Variant{Case: 0, Value: []any{port, parts(ip)}}, nil
	}
	return canon.Variant{Case: 1, Value: []any{port, uint32(0), parts(ip), uint32(0)}}, nil
}

// parts are the numbers of an address, as the tuple that it is.
func parts(ip netip.Addr) []any {
	var out []any
	if ip.Is4() {
		for _, b := range ip.As4() {
			out = append(out, b)
		}
		return out
	}
	b := ip.As16()
	for i := 0; i < len(b); i += 2 {
		out = append(out, uint16(b[i])<<8|uint16(b[i+1]))
	}
	return out
}

// names are the addresses of a name, which are looked up beside the component.
type names struct {
	wasiio.Signal
	done      bool
	err       error
	addresses []netip.Addr
	cancel    context.CancelFunc
}

func resolve(name string) *names {
	n := &names{}
	if ip, err := netip.ParseAddr(name); err == nil {
		n.done, n.addresses = true, []netip.Addr{ip}
		return n
	}
	ctx, cancel := context.WithTimeout(context.Background(), wasiio.MostDial) //nolint:forbidigo // it outlives the call that asks; dropping the names ends it
	n.cancel = cancel
	run.Go("looking up a name", func() error {
		defer cancel()
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		n.Change(func() { n.done, n.err, n.addresses = true, err, found })
		return nil
	})
	return n
}

func (n *names) Ready() (bool, <-chan struct{}) {
	n.Lock()
	defer n.Unlock()
	return n.done, n.Watch()
}

func (n *names) next() any {
	n.Lock()
	defer n.Unlock()
	switch {
	case !n.done:
		return canon.Error(wasiio.Enum(netWouldBlock))
	case n.err != nil:
		return canon.Error(netCode(n.err))
	case len(n.addresses) == 0:
		return canon.OK(canon.None())
	}
	ip := n.addresses[0].Unmap()
	n.addresses = n.addresses[1:]
	if ip.Is4() {
		return canon.OK(canon.Some(canon.Variant{Case: 0, Value: parts(ip)}))
	}
	return canon.OK(canon.Some(canon.Variant{Case: 1, Value: parts(ip)}))
}

func (n *names) End() {
	if n.cancel != nil {
		n.cancel()
	}
}
