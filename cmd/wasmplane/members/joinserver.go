// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"fmt"
	"net"

	"k8s.io/component-base/version"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/site"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/join/handover"
	"github.com/wasmplane/wasmplane/core/store/etcd/diskspeed"
)

// joinServer makes the machine a server of the cluster, unless it is one.
func (s Shell) joinServer(ctx context.Context, cfg *config.Configuration, dir datadir.Dir, server string, by invitation) error {
	switch around, err := join.ReadServer(dir.Server()); {
	case err == nil:
		fmt.Fprintf(s.Out, "This machine is a server of cluster %s already.\n", around.Cluster.Name)
		return nil
	case !errors.Is(err, join.ErrNotJoined):
		return err
	}
	if err := notMine(dir); err != nil {
		return err
	}
	if m, err := join.Read(dir.Member()); err == nil {
		return fmt.Errorf("this machine is node %s of cluster %s, as a worker: leave that first (wasmplane down --purge --data-dir %s)", m.Node, m.Cluster, dir)
	}
	c, err := s.serverConfig(ctx, cfg, dir, server, by)
	if err != nil {
		return err
	}
	if c.PeerPort != 0 {
		l, err := diskspeed.Probe(ctx, dir.Etcd())
		if err != nil {
			return err
		}
		if text := l.Slow(); text != "" {
			fmt.Fprintln(s.Out, "warning:", text)
		}
	}
	around, err := join.JoinServer(ctx, c)
	if err != nil {
		return err
	}
	kind := "server"
	if around.Light {
		kind = "light server"
	}
	fmt.Fprintf(s.Out, "This machine is %s %s of cluster %s now.\n", kind, c.Config.Node, around.Cluster.Name)
	if around.Cluster.VirtualAddress != "" {
		fmt.Fprintf(s.Out, "Clients elsewhere reach all servers at %s, which this one takes over when it is its turn.\n", around.Cluster.VirtualAddress)
	}
	return nil
}

// notMine refuses a directory that has a cluster of its own.
func notMine(dir datadir.Dir) error {
	if state, err := dir.ReadState(); err == nil {
		return fmt.Errorf("%s holds the cluster %s of this machine's own: remove it first (wasmplane down --purge --data-dir %s), or choose another --data-dir", dir, state.Cluster, dir)
	}
	return nil
}

func (s Shell) serverConfig(ctx context.Context, cfg *config.Configuration, dir datadir.Dir, server string,
	by invitation,
) (c join.ServerConfig, err error) {
	if server == "" {
		return c, errors.New("name a server of the cluster: wasmplane join SERVER --server --token-file FILE; on a server, `wasmplane token create --server` prints the whole command")
	}
	token, err := s.invited(cfg, by)
	if err != nil {
		return c, err
	}
	if cfg.Node.Mode.Simulated > 0 {
		return c, errors.New("node.mode: simulated nodes are for a cluster of one machine: join with mode real or none")
	}
	if cfg.Node.Mode.Real && cfg.Node.CRIEndpoint == "" {
		if err := machine.RequireHost(ctx, cfg); err != nil {
			return c, err
		}
	}
	id, err := dir.Identity()
	if err != nil {
		return c, err
	}
	c = join.ServerConfig{
		Config: join.Config{
			Server: server, Token: token, Node: cfg.Node.Name, Machine: id, Names: namesOf(cfg), Version: version.Get().GitVersion,
			Report: func(step string) { fmt.Fprintln(s.Out, " ", step) },
		},
		PKI: dir.PKI(), File: dir.Server(), Listen: cfg.APIServer.Listen, PeerPort: cfg.Store.PeerPort,
		Node: cfg.Node.Mode.Real, Light: cfg.Join.Light,
	}
	if own := cfg.Node.Addresses(); len(own) > 0 {
		c.Host = own[0].String()
	}
	if c.Wants, err = wants(cfg); err != nil {
		return c, err
	}
	if c.Light && len(cfg.Store.Endpoints) > 0 {
		return c, errors.New("--light is for a store that the servers keep themselves, and store.endpoints names an external etcd: leave one of them out")
	}
	if c.Light || len(cfg.Store.Endpoints) > 0 {
		c.PeerPort = 0
	}
	if c.Listen == config.Default().APIServer.Listen { // nobody has chosen: as the server that it joins
		address, err := join.Address(server)
		if err != nil {
			return c, err
		}
		_, port, _ := net.SplitHostPort(address) // it has one
		c.Listen = ":" + port
	}
	c.Fits = func(cluster handover.Cluster, host string) error {
		its := *cfg
		its.APIServer.Listen, its.APIServer.VirtualAddress = c.Listen, cluster.VirtualAddress
		its.Cluster.PodCIDR, its.Cluster.ServiceCIDR = cluster.PodCIDR, cluster.ServiceCIDR
		return site.VirtualFits(&its, host)
	}
	return c, nil
}

// namesOf is what somebody has chosen for the names of what is taken on this machine.
func namesOf(cfg *config.Configuration) string {
	if cfg.Cluster.Name == config.Default().Cluster.Name {
		return "" // nobody has: the cluster's own
	}
	return cfg.Cluster.Name
}

// wants is what the configuration says of the cluster beside what follows from its name.
func wants(cfg *config.Configuration) (w handover.Cluster, err error) {
	plain := config.Default()
	plain.Cluster.Name, plain.Node.Name = cfg.Cluster.Name, cfg.Node.Name
	if err := plain.Complete(); err != nil {
		return w, err
	}
	c, d := cfg.Cluster, plain.Cluster
	if c.Domain != d.Domain {
		w.Domain = c.Domain
	}
	if c.PodCIDR != d.PodCIDR {
		w.PodCIDR = c.PodCIDR
	}
	if c.ServiceCIDR != d.ServiceCIDR {
		w.ServiceCIDR = c.ServiceCIDR
	}
	w.VirtualAddress = cfg.APIServer.VirtualAddress
	return w, nil
}
