// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"net/http"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/bootstrap/roles"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/manifests"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/leader"
)

// Manifests is the folder of manifests of a server.
type Manifests struct {
	Options process.Options
	// API is the server's, and Elect its client for the election.
	API   http.Handler
	Elect kubernetes.Interface
	// Warn writes an event about the holder of a lease.
	Warn func(ctx context.Context, lease, reason, text string)
}

// noManifests is the folder's name where there is to be none.
const noManifests = "none"

// ManifestsDir is the folder of manifests of a server; "" = none.
func ManifestsDir(c *config.Configuration, dir datadir.Dir) string {
	switch c.ManifestsDir {
	case noManifests:
		return ""
	case "":
		return dir.Manifests()
	default:
		return c.Path(c.ManifestsDir)
	}
}

// dir is the folder; "" = none. The usual one is made.
func (m Manifests) dir() (string, error) {
	dir := ManifestsDir(m.Options.Config, m.Options.Dir)
	if dir == m.Options.Dir.Manifests() {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", fmt.Errorf("make the folder of manifests: %w", err)
		}
	}
	return dir, nil
}

// Run applies the folder while this server is the one that does.
func (m Manifests) Run(ctx context.Context) error {
	dir, err := m.dir()
	if err != nil {
		return err
	}
	if dir == "" {
		<-ctx.Done()
		return nil
	}
	holder, err := process.Identity(m.Options)
	if err != nil {
		return err
	}
	set, err := client.New(client.InMemory(m.API, roles.Manifests(), "manifests"))
	if err != nil {
		return err
	}
	folder := manifests.New(manifests.Config{
		Dir: dir, Server: holder, Kube: set.Kube, Dynamic: set.Dynamic, Logger: m.Options.Logger,
		Mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(set.Kube.Discovery())),
		Report: func(ctx context.Context, problem string) { m.Warn(ctx, manifests.Name, "ManifestFailed", problem) },
	})
	if !folder.Wanted(ctx) {
		return nil
	}
	election := leader.Election{
		Client: m.Elect, Namespace: metav1.NamespaceSystem, Name: manifests.Name, Identity: holder, Logger: m.Options.Logger,
	}
	return run.Parallel(func(ctx context.Context) error { return election.Stand(ctx, folder.Apply) }, folder.Compare)(ctx)
}
