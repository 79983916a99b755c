// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"log/slog"

	"github.com/wasmplane/wasmplane/core/run"
)

// follows are files that a server takes on again when they change.
type follows struct {
	log  *slog.Logger
	note func(string)
	list []func(context.Context) error
}

// add adds files to those that are read again. It is called before they are read the
// first time, so that no change is missed in between.
func (f *follows) add(what string, apply func(context.Context) error, files ...string) {
	one := &run.Follow{What: what, Files: files, Apply: apply, Log: f.log, Note: f.note}
	seen := one.Seen()
	f.list = append(f.list, func(ctx context.Context) error { return one.Run(ctx, seen) })
}

func (f *follows) run(ctx context.Context) error {
	return run.Parallel(append(f.list, untilEnd)...)(ctx)
}

// untilEnd waits for ctx's end.
func untilEnd(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
