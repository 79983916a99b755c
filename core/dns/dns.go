// SPDX-License-Identifier: Apache-2.0

// Package dns answers the cluster's names: Services and pods by CoreDNS's
// kubernetes plugin, used as a library, and all other names by the host's
// resolvers, whose answers are kept for as long as they allow.
//
// It serves UDP and TCP on the addresses that it is given and nowhere else, and
// starts only if it has all of them. It goes on answering from what it knows
// while the API is away. CoreDNS registers command line flags and metrics with
// global registries when it is linked; nothing here reads or serves those.
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
)

// Config says what is answered, to whom, and where.
type Config struct {
	// Client is the identity: system:serviceaccount:kube-system:coredns, which may
	// list and watch services, endpointslices and namespaces.
	Client *rest.Config
	// Listen are the addresses to serve on, UDP and TCP each.
	Listen []netip.AddrPort
	// Domain ends the cluster's names; default "cluster.local".
	Domain string
	// Upstream are the resolvers for other names. Empty: those of ResolvConf, which is
	// looked at again when it changes.
	Upstream []netip.AddrPort
	// ResolvConf names the host's resolvers; default /etc/resolv.conf, or systemd-resolved's
	// real one where that points at a stub on loopback.
	ResolvConf string
	// Clients are the networks that are answered; empty: everybody who gets through
	// to the address. Others are refused, so that a node is no open resolver. The
	// machine itself is answered always: pods in its network ask from its addresses.
	Clients []netip.Prefix
	// TTL of the cluster's own names; default 5 s.
	TTL time.Duration
	// Metrics are registered here; nil: nowhere.
	Metrics prometheus.Registerer
	// Log tells of failures; default: nothing is logged.
	Log *slog.Logger
}

func (c *Config) complete() error {
	switch {
	case c.Client == nil:
		return errors.New("dns: Client is nil")
	case len(c.Listen) == 0:
		return errors.New("dns: Listen is empty: name the addresses to serve on")
	}
	for _, l := range c.Listen {
		if !l.IsValid() {
			return fmt.Errorf("dns: Listen: %s is no address with a port", l)
		}
	}
	if c.Domain == "" {
		c.Domain = "cluster.local"
	}
	c.Domain = strings.Trim(c.Domain, ".")
	if _, ok := dns.IsDomainName(c.Domain); !ok || c.Domain == "" || strings.ContainsAny(c.Domain, " \t\n\"{}") {
		return fmt.Errorf("dns: Domain %q is no domain name", c.Domain)
	}
	if c.TTL <= 0 {
		c.TTL = 5 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Server is the cluster's DNS on one node.
type Server struct {
	cfg     Config
	names   *names
	handler *handler
	ready   chan struct{}
	up      chan struct{}
}

// New checks the configuration. Nothing is opened or asked yet.
func New(cfg Config) (*Server, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	metrics, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, ready: make(chan struct{}), up: make(chan struct{})}
	if s.names, err = newNames(cfg, newCache(newForwarder(cfg), time.Now)); err != nil {
		return nil, err
	}
	s.handler = &handler{next: s.names.plugin, clients: cfg.Clients, own: newOwn(), metrics: metrics, log: cfg.Log}
	s.names.plugin.Upstream = lookup{s.handler.next}
	return s, nil
}

// Ready is closed once the cluster's names are known too.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run serves until ctx ends or a listener fails.
func (s *Server) Run(ctx context.Context) error {
	listeners, err := s.open(ctx)
	if err != nil {
		return err
	}
	if err := s.names.connect(ctx); err != nil {
		release(listeners)
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.handler.base = ctx
	failed := make(chan error, len(listeners))
	var wg sync.WaitGroup
	for _, l := range listeners {
		wg.Go(func() { failed <- l.ActivateAndServe() })
	}
	wg.Go(func() { s.names.run(ctx, s.ready) })
	close(s.up)
	select {
	case <-ctx.Done():
		err = nil
	case err = <-failed:
		err = fmt.Errorf("serve DNS: %w", err)
	}
	cancel()
	shutdown(ctx, listeners)
	wg.Wait()
	return err
}

func shutdown(ctx context.Context, listeners []*dns.Server) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	for _, l := range listeners {
		_ = l.ShutdownContext(ctx) // one that failed is not there to be shut down
	}
}

// open takes all addresses, or none.
func (s *Server) open(ctx context.Context) (list []*dns.Server, err error) {
	defer func() {
		if err != nil {
			release(list)
			list = nil
		}
	}()
	var config net.ListenConfig
	for _, at := range s.cfg.Listen {
		udp, err := config.ListenPacket(ctx, "udp", at.String())
		if err != nil {
			return list, cannotListen(at, "udp", err)
		}
		list = append(list, &dns.Server{PacketConn: udp, Handler: s.handler, UDPSize: dns.DefaultMsgSize})
		tcp, err := config.Listen(ctx, "tcp", at.String())
		if err != nil {
			return list, cannotListen(at, "tcp", err)
		}
		list = append(list, &dns.Server{Listener: tcp, Handler: s.handler, ReadTimeout: 5 * time.Second, MaxTCPQueries: 1024})
	}
	return list, nil
}

func release(list []*dns.Server) {
	for _, l := range list {
		if l.PacketConn != nil {
			_ = l.PacketConn.Close()
		} else {
			_ = l.Listener.Close()
		}
	}
}

func cannotListen(at netip.AddrPort, network string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("DNS cannot serve on %s (%s): another server has that address; stop it, or give DNS another address: %w", at, network, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("DNS cannot serve on %s (%s): no interface of this machine has that address yet: %w", at, network, err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("DNS cannot serve on %s (%s): ports below 1024 need root: %w", at, network, err)
	}
	return fmt.Errorf("DNS cannot serve on %s (%s): %w", at, network, err)
}
