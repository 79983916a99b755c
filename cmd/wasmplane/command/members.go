// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/carry"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/members"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/wire"
	"github.com/wasmplane/wasmplane/core/config"
)

// members are the commands of a cluster of several machines.
func (a *app) members() members.Shell {
	return members.Shell{
		Shell: a.Shell,
		Work: func(f *pflag.FlagSet) members.Foreground {
			w := &worker{app: a}
			a.addSettings(f, &w.settings)
			a.addAirgap(f)
			return w
		},
	}
}

// airgap brings clusters to machines without a network.
func (a *app) airgap() *cobra.Command {
	configured := func(f *pflag.FlagSet) func() (*config.Configuration, datadir.Dir, error) {
		var s settings
		a.addSettings(f, &s)
		return func() (*config.Configuration, datadir.Dir, error) {
			cfg, err := a.load(f, &s)
			if err != nil {
				return nil, "", err
			}
			dir, err := s.Open(a.PrintLine)
			return cfg, dir, err
		}
	}
	return carry.Shell{Shell: a.Shell, Version: Version, Configured: configured}.Command()
}

// worker implements members.Foreground.
type worker struct {
	*app
	settings settings
}

func (w *worker) Take(f *pflag.FlagSet) (*config.Configuration, datadir.Dir, func(), error) {
	cfg, err := w.load(f, &w.settings)
	if err != nil {
		return nil, "", nil, err
	}
	dir, release, err := w.take(&w.settings, true)
	return cfg, dir, release, err
}

func (w *worker) Up(ctx context.Context, c *config.Configuration, dir datadir.Dir) error {
	return w.upHere(ctx, c, &w.settings, dir, false)
}

func (w *worker) Run(ctx context.Context, c *config.Configuration, dir datadir.Dir, what string,
	work func(context.Context, wire.Options, func(wire.Info)) error, stopped string,
) error {
	return w.foreground(ctx, c, &w.settings, dir, what, func(ctx context.Context, o wire.Options, ready func(wire.Info)) error {
		if err := carry.Begin(ctx, c, dir, o.Inform); err != nil {
			return err
		}
		return work(ctx, o, ready)
	}, stopped)
}
