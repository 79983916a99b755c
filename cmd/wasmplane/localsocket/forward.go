// SPDX-License-Identifier: Apache-2.0

package localsocket

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/core/join/balance"
	"github.com/wasmplane/wasmplane/core/run"
)

// attempt bounds how long a server may take to accept a connection and to answer by TLS where there are others:
// a machine that is switched off doesn't even refuse.
const attempt = 3 * time.Second

// First is how clients reach a server by its socket, where they may, by the network
// otherwise, and where it does not answer through others, which connects to another server of the
// cluster; nil = there is none. dial is for requests, and proxy for exec, attach and port-forward,
// whose clients connect by themselves and know no other way around the network.
func First(socket, server string, others func(ctx context.Context, network, address string) (net.Conn, error)) (
	dial func(ctx context.Context, network, address string) (net.Conn, error), proxy func(*http.Request) (*url.URL, error),
) {
	dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		here := func(ctx context.Context) (net.Conn, error) {
			if conn, err := Dial(ctx, socket); err == nil {
				return conn, nil
			}
			var d net.Dialer
			return d.DialContext(ctx, network, address)
		}
		if others == nil {
			return here(ctx)
		}
		conn, err := Answering(ctx, here)
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		conn, more := others(ctx, network, address)
		if more != nil {
			return nil, fmt.Errorf("%w; %w", err, more)
		}
		return conn, nil
	}
	forward := &Forward{Dial: dial}
	if at, err := url.Parse(server); err == nil {
		forward.Address = at.Host
	}
	return dial, func(r *http.Request) (*url.URL, error) {
		if _, err := os.Stat(socket); err != nil {
			if configured, err := http.ProxyFromEnvironment(r); others == nil || configured != nil || err != nil {
				return configured, err
			}
		}
		if r.Header.Get("Upgrade") == "" {
			return nil, nil
		}
		return forward.URL(r.Context()) // it lasts as long as the process
	}
}

// Answering connects to a server that talks TLS, and gives one up that does not within some seconds.
func Answering(ctx context.Context, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	soon, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	if err := balance.Answering(soon, dial); err != nil {
		return nil, err
	}
	return dial(soon)
}

// Among connects to the first of the servers, each HOST:PORT, that answers, whichever address is asked for.
func Among(servers []string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		var failures []error
		for _, server := range servers {
			conn, err := Answering(ctx, func(ctx context.Context) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, network, server)
			})
			if err == nil {
				return conn, nil
			}
			failures = append(failures, err)
		}
		return nil, fmt.Errorf("no server of the cluster answers: %w", errors.Join(failures...))
	}
}

// Forward is a proxy on loopback for clients of this process that connect by themselves: those
// of kubectl's for exec, attach and port-forward know a proxy, and no other way to connect. It
// connects to one address only, and takes only clients that know its password.
type Forward struct {
	// Address is the server's, as clients name it: HOST:PORT.
	Address string
	// Dial connects to it.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	begin    sync.Once
	listener net.Listener
	password string
	served   <-chan error
	err      error
}

// URL is where the proxy listens, with the password. It listens from the first call on,
// until Close.
func (f *Forward) URL(ctx context.Context) (*url.URL, error) {
	f.begin.Do(func() {
		var lc net.ListenConfig
		if f.listener, f.err = lc.Listen(ctx, "tcp", "127.0.0.1:0"); f.err != nil {
			f.err = fmt.Errorf("listen for streams to the socket: %w", f.err)
			return
		}
		f.password = rand.Text()
		s := &http.Server{
			Handler: f, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10,
			ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		}
		f.served = run.Go("streams to the socket", func() error { return s.Serve(f.listener) })
	})
	if f.err != nil {
		return nil, f.err
	}
	return &url.URL{Scheme: "http", Host: f.listener.Addr().String(), User: url.UserPassword("socket", f.password)}, nil
}

// Close ends the proxy; streams that are open go on.
func (f *Forward) Close() error {
	f.begin.Do(func() { f.err = net.ErrClosed })
	if f.listener == nil {
		return nil
	}
	err := f.listener.Close()
	<-f.served
	return err
}

// ServeHTTP implements http.Handler: CONNECT, and nothing else.
func (f *Forward) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// BasicAuth reads another header.
	shown := http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
	_, password, _ := shown.BasicAuth()
	switch {
	case subtle.ConstantTimeCompare([]byte(password), []byte(f.password)) != 1:
		w.Header().Set("Proxy-Authenticate", "Basic")
		http.Error(w, "the proxy is one process's own", http.StatusProxyAuthRequired)
	case r.Method != http.MethodConnect || r.Host != f.Address:
		http.Error(w, "the proxy connects to "+f.Address+" only", http.StatusForbidden)
	default:
		f.connect(w, r)
	}
}

func (f *Forward) connect(w http.ResponseWriter, r *http.Request) {
	server, err := f.Dial(r.Context(), "tcp", f.Address)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = server.Close() }()
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer func() { _ = client.Close() }()
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connected\r\n\r\n"); err != nil {
		return
	}
	done := run.Go("stream to the socket", func() error {
		_, err := io.Copy(server, buffered)
		closeWrite(server)
		return err
	})
	_, _ = io.Copy(client, server)
	closeWrite(client)
	// TLS says for itself that it ends: who is still sending is not heard any more.
	_ = client.Close()
	<-done
}

func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}
