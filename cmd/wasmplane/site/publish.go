// SPDX-License-Identifier: Apache-2.0

package site

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/pki"
)

// Publish writes what users and later commands look for.
func (s Site) Publish(nodes string) error {
	k, err := s.Authority.Kubeconfig(s.Options.Config.Cluster.Name, s.URL(), pki.Admin())
	if err != nil {
		return err
	}
	k.Embed = true
	if err := pki.RefreshKubeconfig(s.Options.Dir.Kubeconfig(), k); err != nil {
		return err
	}
	if err := s.publishBreakGlass(); err != nil {
		return err
	}
	if s.Options.MergeKubeconfig != "" {
		if err := pki.MergeKubeconfig(s.Options.MergeKubeconfig, k); err != nil {
			return err
		}
	}
	return s.WriteState(nodes)
}

// publishBreakGlass writes the way in that no authorizer can close. It is for the
// operator of this directory alone, and nothing uses it by default.
func (s Site) publishBreakGlass() error {
	k, err := s.Authority.Kubeconfig(s.Options.Config.Cluster.Name, s.URL(), pki.BreakGlass())
	if err != nil {
		return err
	}
	k.Embed = true
	return pki.WriteKubeconfig(s.Options.Dir.BreakGlassKubeconfig(), k)
}

// WriteState writes what `down` and other commands need to know of this cluster.
func (s Site) WriteState(nodes string) error {
	c := s.Options.Config
	merged := s.Options.MergeKubeconfig
	if merged == "" { // it may be merged since an earlier start
		if before, err := s.Options.Dir.ReadState(); err == nil {
			merged = before.MergedInto
		}
	}
	return s.Options.Dir.WriteState(datadir.State{
		Cluster: c.Cluster.Name, PodCIDR: c.Cluster.PodCIDR, ServiceCIDR: c.Cluster.ServiceCIDR,
		Nodes: nodes, NodeName: c.Node.Name, Server: s.URL(), Started: time.Now(), Version: s.Options.Version,
		LogDir: c.Node.LogDir, LogLinkDir: c.Node.LogLinkDir, CRIEndpoint: c.Node.CRIEndpoint, MergedInto: merged,
	})
}

// PublishComponents writes a kubeconfig for each component, with its own identity.
func (s Site) PublishComponents() error {
	if err := os.MkdirAll(filepath.Dir(s.Options.Dir.ComponentKubeconfig("any")), 0o700); err != nil {
		return fmt.Errorf("make the folder of the components' kubeconfigs: %w", err)
	}
	for _, p := range process.Clients() {
		k, err := s.Authority.Kubeconfig(s.Options.Config.Cluster.Name, s.URL(), p.Identity(s.Options.Config))
		if err != nil {
			return err
		}
		if err := pki.WriteKubeconfig(s.Options.Dir.ComponentKubeconfig(p.Name), k); err != nil {
			return err
		}
	}
	return nil
}
