package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/localsocket"
)

// listenAPI listens where the configuration says, and, where that is loopback and
// pods of this machine need the API, at the address by which they reach it; and at
// a socket of the data directory, for the day when the port cannot be reached.
func (s *server) listenAPI(ctx context.Context, forPods bool) (net.Listener, error) {
	host, _, err := net.SplitHostPort(s.o.Config.APIServer.Listen)
	if err != nil {
		return nil, fmt.Errorf("apiserver.listen: %w", err)
	}
	addrs := []string{s.o.Config.APIServer.Listen}
	if local, err := netip.ParseAddr(host); forPods && (host == "localhost" || err == nil && local.IsLoopback()) && !s.advertise.IsLoopback() {
		addrs = append(addrs, net.JoinHostPort(s.advertise.String(), strconv.Itoa(s.port)))
	}
	m := &listeners{accepted: make(chan net.Conn), done: make(chan struct{})}
	var lc net.ListenConfig
	for _, addr := range addrs {
		l, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			_ = m.Close()
			return nil, fmt.Errorf("%w; choose another address with --listen", err)
		}
		m.all = append(m.all, l)
	}
	local, err := localsocket.Listen(ctx, s.o.Dir.Socket(), s.o.Logger)
	if err != nil {
		_ = m.Close()
		return nil, err
	}
	m.all = append(m.all, local)
	m.accept()
	return m, nil
}

// listeners are several that act as one.
type listeners struct {
	all      []net.Listener
	accepted chan net.Conn
	done     chan struct{}
	once     sync.Once
	running  sync.WaitGroup
}

func (m *listeners) accept() {
	for _, l := range m.all {
		m.running.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					if errors.Is(err, net.ErrClosed) {
						return
					}
					continue // one connection that failed; the listener lives
				}
				select {
				case m.accepted <- c:
				case <-m.done:
					_ = c.Close()
				}
			}
		})
	}
}

// Accept implements net.Listener.
func (m *listeners) Accept() (net.Conn, error) {
	select {
	case c := <-m.accepted:
		return c, nil
	case <-m.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (m *listeners) Close() error {
	var errs []error
	m.once.Do(func() {
		close(m.done)
		for _, l := range m.all {
			errs = append(errs, l.Close())
		}
		m.running.Wait()
	})
	return errors.Join(errs...)
}

// Addr implements net.Listener; it is the first one's.
func (m *listeners) Addr() net.Addr { return m.all[0].Addr() }
