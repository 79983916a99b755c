// SPDX-License-Identifier: Apache-2.0

package site

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/join/handover"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/store/etcd"
)

// serversAround is what this server knows of others; its zero value: there are none.
func serversAround(o process.Options) (join.Server, error) {
	s, err := join.ReadServer(o.Dir.Server())
	if errors.Is(err, join.ErrNotJoined) {
		return join.Server{}, nil
	}
	if err != nil {
		return s, err
	}
	if _, err := os.Stat(filepath.Join(o.Dir.PKI(), "ca.key")); s.Joined() && errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("%s lacks the cluster's keys: joining was interrupted, or they were removed; run `wasmplane down --purge` here, and join again with a new token", o.Dir.PKI())
	}
	return s, nil
}

// Cluster is what all servers agree on. Its name can be another than the one that names of
// this machine derive from.
func (s Site) Cluster() handover.Cluster {
	c := s.Options.Config.Cluster
	return handover.Cluster{
		Name: cmp.Or(s.Around.Cluster.Name, c.Name), Domain: c.Domain, PodCIDR: c.PodCIDR, ServiceCIDR: c.ServiceCIDR,
		VirtualAddress: s.Options.Config.APIServer.VirtualAddress,
	}
}

// Stores are the other servers' stores for a light server, and what it shows them. Changed keeps which there are.
func (s Site) Stores() etcd.LightConfig {
	return etcd.LightConfig{
		Members: s.Around.Peers, PairFile: pki.StoreClientFile(s.Options.Dir.PKI()), CAFile: s.Authority.EtcdCAFile(),
		Progress: s.Options.Inform, Logger: s.Options.Logger,
		Changed: func(members []string) error {
			around := s.Around
			around.Peers = members
			return around.Write(s.Options.Dir.Server())
		},
	}
}

// Peers is what the store needs to be one of several; nil where the API listens on this
// machine alone, so that no other server can come.
func (s Site) Peers() (*etcd.Peers, error) {
	host, _, _ := net.SplitHostPort(s.Options.Config.APIServer.Listen)
	local, err := netip.ParseAddr(host)
	if s.Around.Address == "" && (host == "localhost" || err == nil && local.IsLoopback()) {
		return nil, nil
	}
	hosts := []string{s.Advertise.String()}
	if at, _, err := net.SplitHostPort(s.Around.Address); err == nil && at != hosts[0] {
		hosts = append(hosts, at)
	}
	pair, authority, err := s.Authority.EtcdPeer(hosts...)
	if err != nil {
		return nil, err
	}
	return &etcd.Peers{
		Name: cmp.Or(s.Around.Name, s.Options.Config.Node.Name), PairFile: pair.File(), CAFile: authority,
		Address: s.Around.Address, Join: s.Around.Peers,
	}, nil
}
