// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/pki"
)

// publish writes what users and later commands look for.
func (s site) publish(nodes string) error {
	k, err := s.authority.Kubeconfig(s.o.Config.Cluster.Name, s.url(), pki.Admin())
	if err != nil {
		return err
	}
	k.Embed = true
	if err := pki.RefreshKubeconfig(s.o.Dir.Kubeconfig(), k); err != nil {
		return err
	}
	if err := s.publishBreakGlass(); err != nil {
		return err
	}
	if s.o.MergeKubeconfig != "" {
		if err := pki.MergeKubeconfig(s.o.MergeKubeconfig, k); err != nil {
			return err
		}
	}
	return s.writeState(nodes)
}

// publishBreakGlass writes the way in that no authorizer can close. It is for the
// operator of this directory alone, and nothing uses it by default.
func (s site) publishBreakGlass() error {
	k, err := s.authority.Kubeconfig(s.o.Config.Cluster.Name, s.url(), pki.BreakGlass())
	if err != nil {
		return err
	}
	k.Embed = true
	return pki.WriteKubeconfig(s.o.Dir.BreakGlassKubeconfig(), k)
}

func (s site) writeState(nodes string) error {
	c := s.o.Config
	merged := s.o.MergeKubeconfig
	if merged == "" { // it may be merged since an earlier start
		if before, err := s.o.Dir.ReadState(); err == nil {
			merged = before.MergedInto
		}
	}
	return s.o.Dir.WriteState(datadir.State{
		Cluster: c.Cluster.Name, PodCIDR: c.Cluster.PodCIDR, ServiceCIDR: c.Cluster.ServiceCIDR,
		Nodes: nodes, NodeName: c.Node.Name, Server: s.url(), Started: time.Now(), Version: s.o.Version,
		LogDir: c.Node.LogDir, LogLinkDir: c.Node.LogLinkDir, CRIEndpoint: c.Node.CRIEndpoint, MergedInto: merged,
	})
}

// publishComponents writes a kubeconfig for each component, with its own identity.
func (s site) publishComponents() error {
	if err := os.MkdirAll(filepath.Dir(s.o.Dir.ComponentKubeconfig("any")), 0o700); err != nil {
		return fmt.Errorf("make the folder of the components' kubeconfigs: %w", err)
	}
	for _, p := range process.Clients() {
		k, err := s.authority.Kubeconfig(s.o.Config.Cluster.Name, s.url(), p.Identity(s.o.Config))
		if err != nil {
			return err
		}
		if err := pki.WriteKubeconfig(s.o.Dir.ComponentKubeconfig(p.Name), k); err != nil {
			return err
		}
	}
	return nil
}
