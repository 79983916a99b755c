// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/component-base/version"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/join/balance"
	"github.com/wasmplane/wasmplane/core/join/handover"
	"github.com/wasmplane/wasmplane/core/store/etcd"
)

// serversAround is what this server knows of others; its zero value: there are none.
func serversAround(o Options) (join.Server, error) {
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

// cluster is what all servers agree on. Its name can be another than the one that names of
// this machine derive from.
func (s site) cluster() handover.Cluster {
	c := s.o.Config.Cluster
	return handover.Cluster{Name: cmp.Or(s.around.Cluster.Name, c.Name), Domain: c.Domain, PodCIDR: c.PodCIDR, ServiceCIDR: c.ServiceCIDR}
}

// peers is what the store needs to be one of several; nil where the API listens on this
// machine alone, so that no other server can come.
func (s site) peers() (*etcd.Peers, error) {
	host, _, _ := net.SplitHostPort(s.o.Config.APIServer.Listen)
	local, err := netip.ParseAddr(host)
	if s.around.Address == "" && (host == "localhost" || err == nil && local.IsLoopback()) {
		return nil, nil
	}
	hosts := []string{s.advertise.String()}
	if at, _, err := net.SplitHostPort(s.around.Address); err == nil && at != hosts[0] {
		hosts = append(hosts, at)
	}
	pair, authority, err := s.authority.EtcdPeer(hosts...)
	if err != nil {
		return nil, err
	}
	return &etcd.Peers{
		Name: cmp.Or(s.around.Name, s.o.Config.Node.Name), PairFile: pair.File(), CAFile: authority,
		Address: s.around.Address, Join: s.around.Peers,
	}, nil
}

// giver takes further servers in.
func (b base) giver(st *storage) *handover.Giver {
	c := b.o.Config
	g := &handover.Giver{
		Kube: b.internal.Kube, Store: st.members, Cluster: b.cluster(), Port: b.port, Version: version.Get().GitVersion, Log: b.o.Logger,
		Address: net.JoinHostPort(b.advertise.String(), strconv.Itoa(c.Store.PeerPort)),
		Keys:    b.serverKeys, Dial: process.OperatorsDial(b.o).Context(),
	}
	g.Opened = func() error {
		around := b.around
		around.Name, around.Address = cmp.Or(around.Name, c.Node.Name), g.Address
		return around.Write(b.o.Dir.Server())
	}
	if host, _, err := net.SplitHostPort(c.APIServer.Listen); err == nil {
		if at, err := netip.ParseAddr(host); host == "localhost" || err == nil && at.IsLoopback() {
			g.Address = "" // nobody comes to an API that listens here alone
		}
	}
	return g
}

// serverKeys are what every server of the cluster has. The key of Secrets at rest is
// that of the configuration, wherever it lies.
func (b base) serverKeys() (handover.Keys, error) {
	keys := handover.Keys{}
	for _, name := range handover.Files() {
		file := filepath.Join(b.o.Dir.PKI(), name)
		if own := b.o.Config.Path(b.o.Config.Store.EncryptionConfigFile); name == "encryption.yaml" && own != "" {
			file = own
		}
		data, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // whoever is given the keys says what is missing
		}
		if err != nil {
			return nil, fmt.Errorf("read the cluster's keys: %w", err)
		}
		keys[name] = data
	}
	return keys, nil
}

// followServers keeps the list of all servers, by which this one leaves through another.
func (s *server) followServers(ctx context.Context) error {
	own := net.JoinHostPort(s.advertise.String(), strconv.Itoa(s.port))
	return balance.New(balance.Config{File: s.o.Dir.Servers(), First: own, Log: s.o.Logger}).Follow(ctx, s.internal.Kube)
}
