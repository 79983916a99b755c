// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"

	"github.com/spf13/pflag"

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
			return w
		},
	}
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
	return w.foreground(ctx, c, &w.settings, dir, what, work, stopped)
}
