// SPDX-License-Identifier: Apache-2.0

// Package site is where an API server stands: at which addresses it listens, how it
// is reached, the keys that vouch for it, and what it writes into its data directory
// so that users and other commands find it.
package site

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/pki"
)

// Site is where a server stands.
type Site struct {
	Options   process.Options // the API's port is named, also where the caller left it open
	Authority *pki.Authority
	Advertise netip.Addr     // where pods and other machines reach the API
	Port      int            // of the API
	Services  []netip.Prefix // the cluster IPs of Services, the cluster's own family first
	Around    join.Server    // what it knows of other servers
}

// Open finds out where the server stands, and makes or reads its keys.
func Open(ctx context.Context, o process.Options) (s Site, err error) {
	around, err := serversAround(o)
	if err != nil {
		return Site{}, err
	}
	o.Config = around.Configure(o.Config)
	if s, err = findSite(ctx, o); err != nil {
		return Site{}, err
	}
	s.Around = around
	if s.Services, err = config.ParseNetworks(s.Options.Config.Cluster.ServiceCIDR); err != nil {
		return Site{}, fmt.Errorf("cluster.serviceCIDR: %w", err)
	}
	if s.Services[0].Addr().Is6() && s.Advertise.Is4() {
		return Site{}, fmt.Errorf("apiserver.listen: %s is IPv4, and pods reach the API by a Service of IPv6 (the first network of cluster.serviceCIDR): listen at an IPv6 address of this machine, or at all ([::]:%d)", s.Advertise, s.Port)
	}
	if err := s.checkNetworks(ctx); err != nil {
		return Site{}, err
	}
	host, _, _ := net.SplitHostPort(s.Options.Config.APIServer.Listen)
	hosts := append([]string{s.Advertise.String()}, s.Options.Config.APIServer.SubjectAltNames...)
	if host != "" {
		hosts = append(hosts, host)
	}
	for _, ip := range s.Options.Config.APIServer.VirtualAddresses() {
		hosts = append(hosts, ip.String())
	}
	if name, err := os.Hostname(); err == nil {
		hosts = append(hosts, name)
	}
	var first []netip.Addr
	for _, p := range s.Services {
		first = append(first, p.Addr().Next())
	}
	s.Authority, err = pki.Open(pki.Config{
		Dir: s.Options.Dir.PKI(), ClusterDomain: s.Options.Config.Cluster.Domain,
		ServiceIPs: first, Hosts: hosts, Log: s.Options.Logger,
	})
	if err != nil {
		return s, err
	}
	return s, s.checkVirtual(ctx)
}

// findSite says where the API is reached. Its options name the port, also where those of
// the caller leave it open.
func findSite(ctx context.Context, o process.Options) (Site, error) {
	host, text, err := net.SplitHostPort(o.Config.APIServer.Listen)
	if err != nil {
		return Site{}, fmt.Errorf("apiserver.listen: %w", err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return Site{}, fmt.Errorf("apiserver.listen: %w", err)
	}
	if port == 0 {
		if port, err = freePort(ctx, host); err != nil {
			return Site{}, err
		}
		c := *o.Config
		c.APIServer.Listen = net.JoinHostPort(host, strconv.Itoa(port))
		o.Config = &c
	}
	if addr, err := netip.ParseAddr(host); err == nil && !addr.IsLoopback() && !addr.IsUnspecified() {
		return Site{Options: o, Port: port, Advertise: addr}, nil
	}
	advertise, err := machine.HostAddress(o.Config)
	return Site{Options: o, Port: port, Advertise: advertise}, err
}

// freePort chooses a port that is free. Certificates, tokens and Endpoints name it
// before anything may listen there, so it is given back until then; should another
// process take it meanwhile, listening says so.
func freePort(ctx context.Context, host string) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return 0, fmt.Errorf("apiserver.listen: choose a port: %w", err)
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// URL is how this machine's own clients reach the API.
func (s Site) URL() string {
	host, _, _ := net.SplitHostPort(s.Options.Config.APIServer.Listen)
	if addr, err := netip.ParseAddr(host); host == "" || err == nil && addr.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "https://" + net.JoinHostPort(host, strconv.Itoa(s.Port))
}
