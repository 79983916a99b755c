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
	"slices"
	"strconv"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/component-base/version"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/carry"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/join/balance"
	"github.com/wasmplane/wasmplane/core/join/handover"
	"github.com/wasmplane/wasmplane/core/join/peers"
	"github.com/wasmplane/wasmplane/core/join/succession"
	"github.com/wasmplane/wasmplane/core/run"
)

// giver takes further servers in.
func (b base) giver(st *storage) *handover.Giver {
	c := b.Options.Config
	g := &handover.Giver{
		Kube: b.internal.Kube, Store: st.members, Cluster: b.Cluster(), Port: b.Port, Version: version.Get().GitVersion, Log: b.Options.Logger,
		Address:  net.JoinHostPort(b.Advertise.String(), strconv.Itoa(c.Store.PeerPort)),
		Changing: func(ctx context.Context) (bool, error) { return succession.Underway(ctx, b.internal.Kube) },
		Light:    b.Around.Light,
		Keys:     b.serverKeys, Dial: process.OperatorsDial(b.Options).Context(),
	}
	g.Self = handover.Server{
		Name: c.Node.Name, Address: b.apiAddress(),
		Version: b.Options.Version, Kubernetes: g.Version,
	}
	if st.members != nil && !g.Light {
		g.SignStore = b.Authority.SignStoreClient
	}
	g.Opened = func() error {
		around := b.Around
		around.Name, around.Address = cmp.Or(around.Name, c.Node.Name), g.Address
		return around.Write(b.Options.Dir.Server())
	}
	if host, _, err := net.SplitHostPort(c.APIServer.Listen); err == nil {
		if at, err := netip.ParseAddr(host); host == "localhost" || err == nil && at.IsLoopback() {
			g.Address = "" // nobody comes to an API that listens here alone
		}
	}
	return g
}

// apiAddress is where other machines reach the API of this server.
func (b base) apiAddress() string {
	return net.JoinHostPort(b.Advertise.String(), strconv.Itoa(b.Port))
}

// serverKeys are what every server of the cluster has. The key of Secrets at rest is
// that of the configuration, wherever it lies.
func (b base) serverKeys() (handover.Keys, error) {
	keys := handover.Keys{}
	for _, name := range handover.Files() {
		file := filepath.Join(b.Options.Dir.PKI(), name)
		if own := b.Options.Config.Path(b.Options.Config.Store.EncryptionConfigFile); name == "encryption.yaml" && own != "" {
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

// holdVirtualAddress has this server have the API's virtual address in its turn.
func (s *server) holdVirtualAddress(ctx context.Context) error {
	if !run.Await(ctx, s.boot.Ready()) {
		return nil
	}
	return s.HoldVirtualAddress(ctx, s.internal.Kube, sync.OnceFunc(func() { close(s.addressed) }))
}

// followArchives takes over the archives that the other servers have.
func (s *server) followArchives(ctx context.Context) error {
	if !run.Await(ctx, s.boot.Ready()) {
		return nil
	}
	return carry.Follow(ctx, s.Options, s.others, func() (*rest.Config, error) { return s.Options.Dir.Own("airgap") })
}

// others are the addresses of the other servers' APIs.
func (s *server) others(ctx context.Context) ([]string, error) {
	all, err := peers.Addresses(ctx, s.internal.Kube)
	return slices.DeleteFunc(all, func(a string) bool { return a == s.apiAddress() }), err
}

// followServers keeps the list of all servers, by which this one leaves through another.
func (s *server) followServers(ctx context.Context) error {
	b := balance.New(balance.Config{File: s.Options.Dir.Servers(), First: s.apiAddress(), Log: s.Options.Logger})
	return b.Follow(ctx, s.internal.Kube)
}
