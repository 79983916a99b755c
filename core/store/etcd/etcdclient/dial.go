// SPDX-License-Identifier: Apache-2.0

package etcdclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-semver/semver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store/etcd/failover"
)

// Config is how to reach an external etcd cluster.
type Config struct {
	// Endpoints are URLs: https://HOST:PORT, http://HOST:PORT, unix:///PATH.
	Endpoints []string
	// CAFile, CertFile and KeyFile are PEM files for https endpoints: whom to
	// trust ("" = the host's roots), and who we are ("" = nobody). Certificate and key are
	// read again for each connection, so they can be renewed in place.
	CAFile, CertFile, KeyFile string
	// ServerName is what certificates are checked for; "" = the endpoint's host.
	ServerName string
	// Timeout bounds each call that has no deadline of its own, and Dial; 0 = 10 s.
	Timeout time.Duration
	// Logger is told of members that cannot be used; nil = discard.
	Logger *slog.Logger
}

// oldest is the first version whose progress notifications can be trusted not
// to overtake events (etcd #15220), which consistent lists from the cache rely on.
var oldest = semver.Version{Major: 3, Minor: 5, Patch: 8}

// Dial connects to an etcd cluster and checks that it answers.
func Dial(ctx context.Context, cfg Config) (*Store, error) {
	cfg, tlsConfig, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	s, err := connect(ctx, cfg, tlsConfig)
	if err != nil {
		return nil, err
	}
	if err := s.greet(ctx, cfg, tlsConfig); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Connect makes a store of the endpoints, which have not been asked for anything yet. They may be down.
func Connect(ctx context.Context, cfg Config) (*Store, error) {
	cfg, tlsConfig, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	return connect(ctx, cfg, tlsConfig)
}

func connect(ctx context.Context, cfg Config, tlsConfig *tls.Config) (*Store, error) {
	endpoints := failover.New(cfg.Endpoints, cfg.Logger)
	client, err := clientv3.New(clientv3.Config{
		Context:   context.WithoutCancel(ctx), // Close ends it, not the context of dialling
		Endpoints: cfg.Endpoints, TLS: tlsConfig,
		DialKeepAliveTime: 30 * time.Second, DialKeepAliveTimeout: 10 * time.Second,
		MaxCallSendMsgSize: 64 << 20, // etcd bounds requests, and says so readably
		Logger:             zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
				MinConnectTimeout: 5 * time.Second,
			}),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
			grpc.WithChainUnaryInterceptor(endpoints.Intercept),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("etcd at %s: %w", strings.Join(cfg.Endpoints, ", "), err)
	}
	s := New(client, "etcd at "+strings.Join(cfg.Endpoints, ", "), cfg.Timeout)
	s.endpoints = endpoints
	asking, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := run.Go("etcd members", func() error { endpoints.Run(asking, client); return nil })
	s.ends = func() { cancel(); <-ended }
	return s, nil
}

// greet asks the endpoints one after another for their version, so that a
// wrong address, certificate or version is found here and named.
func (s *Store) greet(ctx context.Context, cfg Config, t *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	var failures []error
	for i, ep := range cfg.Endpoints {
		// Each endpoint gets its share of the time: one that is down must not use up all of it.
		left := len(cfg.Endpoints) - i
		deadline, _ := ctx.Deadline()
		one, cancel := context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
		resp, err := s.client.Maintenance.Status(one, ep)
		cancel()
		if err != nil {
			why := Plain(err)
			if cause := diagnose(ctx, ep, t); cause != nil {
				why = cause.Error()
			}
			failures = append(failures, fmt.Errorf("%s: %s", ep, why))
			continue
		}
		if v, err := semver.NewVersion(resp.Version); err != nil || v.LessThan(oldest) {
			return fmt.Errorf("etcd at %s has version %s: want %s or newer, whose watches tell their progress reliably", ep, resp.Version, oldest)
		}
		return nil
	}
	return fmt.Errorf("no etcd answers; check store.endpoints and the certificates: %w", errors.Join(failures...))
}

// diagnose connects by hand to find out why etcd's client could not, which only
// says that it waited long enough. nil where that works.
func diagnose(ctx context.Context, ep string, t *tls.Config) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	scheme, address, _ := strings.Cut(ep, "://")
	network := "tcp"
	if strings.HasPrefix(scheme, "unix") {
		network = "unix"
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, strings.TrimSuffix(address, "/"))
	if err != nil || t == nil {
		if conn != nil {
			_ = conn.Close()
		}
		return err //nolint:wrapcheck // greet names the endpoint
	}
	defer func() { _ = conn.Close() }()
	t = t.Clone()
	if t.NextProtos = []string{"h2"}; t.ServerName == "" {
		if host, _, err := net.SplitHostPort(address); err == nil {
			t.ServerName = host
		}
	}
	secure := tls.Client(conn, t)
	if err := secure.HandshakeContext(ctx); err != nil {
		return err //nolint:wrapcheck // greet names the endpoint
	}
	// What the server thinks of our certificate it says after the handshake.
	deadline, _ := ctx.Deadline()
	if err := secure.SetReadDeadline(deadline); err != nil {
		return err //nolint:wrapcheck // greet names the endpoint
	}
	if _, err := secure.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err //nolint:wrapcheck // greet names the endpoint
	}
	return nil
}

func (c Config) complete() (Config, *tls.Config, error) {
	if len(c.Endpoints) == 0 {
		return c, nil, errors.New("etcd: no endpoints given")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	secure := 0
	for _, ep := range c.Endpoints {
		scheme, _, _ := strings.Cut(ep, "://")
		switch scheme {
		case "https", "unixs":
			secure++
		case "http", "unix":
		default:
			return c, nil, fmt.Errorf("etcd endpoint %q: want a URL that begins with https://, http:// or unix://", ep)
		}
	}
	if secure == 0 {
		if c.CAFile+c.CertFile+c.KeyFile != "" {
			return c, nil, errors.New("etcd: certificate files are given, but no endpoint begins with https://")
		}
		return c, nil, nil
	}
	if secure != len(c.Endpoints) {
		return c, nil, fmt.Errorf("etcd endpoints %s: use https:// for all of them or for none", strings.Join(c.Endpoints, ", "))
	}
	t, err := c.TLS()
	return c, t, err
}

// TLS is how a connection is made secure with the configuration's files, which it checks. The pair is read again for each connection.
func (c Config) TLS() (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("etcd: read CA certificates: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("etcd: %s holds no PEM certificate", c.CAFile)
		}
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return nil, fmt.Errorf("etcd: a client certificate needs both files, got certificate %q and key %q", c.CertFile, c.KeyFile)
	}
	if c.CertFile == "" {
		return t, nil
	}
	if _, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile); err != nil {
		return nil, fmt.Errorf("etcd: client certificate: %w", err)
	}
	t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		return &pair, err
	}
	return t, nil
}
