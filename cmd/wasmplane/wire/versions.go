// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store/mark"
)

// checkVersion fails where a newer version has served the store, before anything is written.
func (s *storage) checkVersion(ctx context.Context, b base) error {
	id, err := b.Options.Dir.Identity()
	if err != nil {
		return err
	}
	return mark.Check(ctx, s.disk, id, b.Options.Version)
}

// markVersion writes into the store that this version serves it. While an upgrade is on trial it
// waits: the version before could not carry on otherwise.
func (s *server) markVersion(ctx context.Context) error {
	const look = 2 * time.Second
	if !run.Await(ctx, s.boot.Ready()) {
		return nil
	}
	for s.Options.Dir.UpgradeOnTrial(time.Now()) {
		if !run.Sleep(ctx, look) {
			return nil
		}
	}
	retry := run.Backoff{First: time.Second, Longest: time.Minute}
	id, err := s.Options.Dir.Identity()
	if err == nil {
		err = mark.Write(ctx, s.storage.disk, id, s.Options.Version)
	}
	for err != nil && retry.Wait(ctx) {
		s.Options.Logger.WarnContext(ctx, "the store was not marked with this version; an older one would not notice that it is too old", "error", err)
		err = mark.Write(ctx, s.storage.disk, id, s.Options.Version)
	}
	if err == nil {
		s.Options.Logger.InfoContext(ctx, "the store is marked with this version", "version", s.Options.Version)
	}
	<-ctx.Done()
	return nil
}
