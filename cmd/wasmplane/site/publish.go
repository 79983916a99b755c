// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/pki/kubeconfig"
)

// Publish writes what users and later commands look for.
func (s Site) Publish(nodes string) error {
	k, err := s.publishAccess()
	if err != nil {
		return err
	}
	if s.Options.MergeKubeconfig != "" {
		if err := kubeconfig.Merge(s.Options.MergeKubeconfig, k); err != nil {
			return err
		}
	}
	return s.WriteState(nodes)
}

// publishAccess writes the kubeconfigs of this machine's operator, and returns the one for every day.
func (s Site) publishAccess() (kubeconfig.Access, error) {
	k, err := kubeconfig.Of(s.Authority, s.Options.Config.Cluster.Name, s.PublicURL(), pki.Admin())
	if err != nil {
		return k, err
	}
	k.Embed = true
	if err := kubeconfig.Refresh(s.Options.Dir.Kubeconfig(), k); err != nil {
		return k, err
	}
	return k, s.publishBreakGlass()
}

// mergedInto is the kubeconfig of a user that has this cluster's context, maybe since an
// earlier start; "" = none.
func (s Site) mergedInto() string {
	if s.Options.MergeKubeconfig != "" {
		return s.Options.MergeKubeconfig
	}
	if before, err := s.Options.Dir.ReadState(); err == nil {
		return before.MergedInto
	}
	return ""
}

// Republish writes again what names the cluster's authorities, or holds a certificate.
func (s Site) Republish(ctx context.Context) error {
	k, err := s.publishAccess()
	if err != nil {
		return err
	}
	if merged := s.mergedInto(); merged != "" {
		if err := kubeconfig.RefreshMerged(merged, k); err != nil {
			s.Options.Logger.WarnContext(ctx, "the kubeconfig that has this cluster's context could not be written again", "file", merged, "error",
				err)
		}
	}
	if _, err := os.Stat(filepath.Dir(s.Options.Dir.ComponentKubeconfig("any"))); err != nil {
		return nil //nolint:nilerr // there are none to write again
	}
	return s.PublishComponents()
}

// FollowRenewals writes kubeconfigs again whose certificates were renewed, until ctx ends: the operator's
// hold copies.
func (s Site) FollowRenewals(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.Authority.Changed():
			if err := s.Republish(ctx); err != nil {
				s.Options.Logger.ErrorContext(ctx, "certificates were renewed, and the kubeconfigs of the data directory could not be written again; the next start does it",
					"error", err)
			}
		}
	}
}

// publishBreakGlass writes the way in that no authorizer can close. It is for the
// operator of this directory alone, and nothing uses it by default.
func (s Site) publishBreakGlass() error {
	k, err := kubeconfig.Of(s.Authority, s.Options.Config.Cluster.Name, s.URL(), pki.BreakGlass())
	if err != nil {
		return err
	}
	k.Embed = true
	return kubeconfig.Write(s.Options.Dir.BreakGlassKubeconfig(), k)
}

// WriteState writes what `down` and other commands need to know of this cluster.
func (s Site) WriteState(nodes string) error {
	c, public := s.Options.Config, s.PublicURL()
	if public == s.URL() {
		public = ""
	}
	return s.Options.Dir.WriteState(datadir.State{
		Cluster: c.Cluster.Name, PodCIDR: c.Cluster.PodCIDR, ServiceCIDR: c.Cluster.ServiceCIDR,
		Nodes: nodes, NodeName: c.Node.Name, Server: s.URL(), Public: public, Started: time.Now(), Version: s.Options.Version,
		LogDir: c.Node.LogDir, LogLinkDir: c.Node.LogLinkDir, KubeletLink: c.Node.KubeletLink, CRIEndpoint: c.Node.CRIEndpoint,
		MergedInto: s.mergedInto(),
	})
}

// PublishComponents writes a kubeconfig for each component, with its own identity.
func (s Site) PublishComponents() error {
	if err := os.MkdirAll(filepath.Dir(s.Options.Dir.ComponentKubeconfig("any")), 0o700); err != nil {
		return fmt.Errorf("make the folder of the components' kubeconfigs: %w", err)
	}
	for _, p := range process.Clients() {
		k, err := kubeconfig.Of(s.Authority, s.Options.Config.Cluster.Name, s.URL(), p.Identity(s.Options.Config))
		if err != nil {
			return err
		}
		// A component also checks clients' certificates by what the file names.
		k.CA = s.Authority.CAPEM()
		if err := kubeconfig.Write(s.Options.Dir.ComponentKubeconfig(p.Name), k); err != nil {
			return err
		}
	}
	return nil
}
