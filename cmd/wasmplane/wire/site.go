// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/pki"
)

// site is where a server stands: how it is reached, and the keys that vouch for it.
type site struct {
	o         Options
	authority *pki.Authority
	advertise netip.Addr // where pods and other machines reach the API
	port      int
	services  netip.Prefix
	around    join.Server // what it knows of other servers
}

func openSite(ctx context.Context, o Options) (s site, err error) {
	around, err := serversAround(o)
	if err != nil {
		return site{}, err
	}
	o.Config = around.Configure(o.Config)
	if s, err = findSite(ctx, o); err != nil {
		return site{}, err
	}
	s.around = around
	if s.services, err = netip.ParsePrefix(s.o.Config.Cluster.ServiceCIDR); err != nil {
		return site{}, fmt.Errorf("cluster.serviceCIDR: %w", err)
	}
	host, _, _ := net.SplitHostPort(s.o.Config.APIServer.Listen)
	hosts := append([]string{s.advertise.String()}, s.o.Config.APIServer.SubjectAltNames...)
	if host != "" {
		hosts = append(hosts, host)
	}
	if name, err := os.Hostname(); err == nil {
		hosts = append(hosts, name)
	}
	s.authority, err = pki.Open(pki.Config{
		Dir: s.o.Dir.PKI(), ClusterDomain: s.o.Config.Cluster.Domain,
		ServiceIPs: []netip.Addr{s.services.Masked().Addr().Next()}, Hosts: hosts, Log: s.o.Logger,
	})
	return s, err
}

// findSite says where the API is reached. Its options name the port, also where those of
// the caller leave it open.
func findSite(ctx context.Context, o Options) (site, error) {
	host, text, err := net.SplitHostPort(o.Config.APIServer.Listen)
	if err != nil {
		return site{}, fmt.Errorf("apiserver.listen: %w", err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return site{}, fmt.Errorf("apiserver.listen: %w", err)
	}
	if port == 0 {
		if port, err = freePort(ctx, host); err != nil {
			return site{}, err
		}
		c := *o.Config
		c.APIServer.Listen = net.JoinHostPort(host, strconv.Itoa(port))
		o.Config = &c
	}
	if addr, err := netip.ParseAddr(host); err == nil && !addr.IsLoopback() && !addr.IsUnspecified() {
		return site{o: o, port: port, advertise: addr}, nil
	}
	advertise, err := machine.HostAddress(o.Config)
	return site{o: o, port: port, advertise: advertise}, err
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

// url is how this machine's own clients reach the API.
func (s site) url() string {
	host, _, _ := net.SplitHostPort(s.o.Config.APIServer.Listen)
	if addr, err := netip.ParseAddr(host); host == "" || err == nil && addr.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "https://" + net.JoinHostPort(host, strconv.Itoa(s.port))
}
