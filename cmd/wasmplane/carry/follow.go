// SPDX-License-Identifier: Apache-2.0

package carry

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/airgap"
	"github.com/wasmplane/wasmplane/core/airgap/lending"
	"github.com/wasmplane/wasmplane/core/join"
)

// Follow takes over the archives that servers have, while this machine runs: modules are put into their place, images are
// imported. Manifests are left to the server that was given the archive. own is this machine's way to any of the servers.
func Follow(ctx context.Context, o process.Options, servers func(context.Context) ([]string, error),
	own func() (*rest.Config, error),
) error {
	c := o.Config
	if !c.Airgap.FromServers {
		<-ctx.Done()
		return nil
	}
	keys, err := Keys(keyFiles(c))
	if err != nil {
		return err
	}
	onNode := func(ctx context.Context) error {
		if !c.Node.Mode.Real || c.Node.CRIEndpoint != "" {
			return nil
		}
		return machine.ImportArchives(ctx, o.Dir, func(step string) { o.Logger.InfoContext(ctx, step) })
	}
	f := &lending.Follower{
		Dir: o.Dir.Airgap(), Servers: servers, Check: Check(keys), Log: o.Logger,
		Client: func(address string) (*rest.Config, error) {
			cfg, err := own()
			if err != nil {
				return nil, err
			}
			return join.ToServer(cfg, address), nil
		},
		Took: func(ctx context.Context, a *airgap.Archive) error {
			if err := PlaceModules(o.Dir, a, true); err != nil {
				return err
			}
			return onNode(ctx)
		},
		Removed: onNode,
	}
	return f.Run(ctx)
}
