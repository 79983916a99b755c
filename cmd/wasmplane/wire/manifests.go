// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/bootstrap"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/manifests"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/leader"
)

// noManifests is the folder's name where there is to be none.
const noManifests = "none"

// manifestsDir is the folder whose manifests are applied; "" = none.
func (b base) manifestsDir() (string, error) {
	switch dir := b.o.Config.ManifestsDir; dir {
	case noManifests:
		return "", nil
	case "":
		if err := os.MkdirAll(b.o.Dir.Manifests(), 0o700); err != nil {
			return "", fmt.Errorf("make the folder of manifests: %w", err)
		}
		return b.o.Dir.Manifests(), nil
	default:
		return b.o.Config.Path(dir), nil
	}
}

// applyManifests applies the folder of manifests while this server is the one that does.
func (s *server) applyManifests(ctx context.Context) error {
	dir, err := s.manifestsDir()
	if err != nil {
		return err
	}
	if dir == "" || !run.Await(ctx, s.boot.Ready()) {
		return untilEnd(ctx)
	}
	holder, err := process.Identity(s.o)
	if err != nil {
		return err
	}
	set, err := client.New(client.InMemory(s.local, bootstrap.Manifests(), "manifests"))
	if err != nil {
		return err
	}
	folder := manifests.New(manifests.Config{
		Dir: dir, Server: holder, Kube: set.Kube, Dynamic: set.Dynamic, Logger: s.o.Logger,
		Mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(set.Kube.Discovery())),
		Report: func(ctx context.Context, problem string) { s.warn(ctx, manifests.Name, "ManifestFailed", problem) },
	})
	if !folder.Wanted(ctx) {
		return nil
	}
	election := leader.Election{
		Client: s.internal.Kube, Namespace: metav1.NamespaceSystem, Name: manifests.Name, Identity: holder, Logger: s.o.Logger,
	}
	return run.Parallel(func(ctx context.Context) error { return election.Stand(ctx, folder.Apply) }, folder.Compare)(ctx)
}
