// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/wasmplane/wasmplane/core/store/etcd/memberlog"
	"github.com/wasmplane/wasmplane/core/store/etcd/snapshotfile"
	"github.com/wasmplane/wasmplane/core/store/etcd/zaplog"
)

// SurviveConfig says how one member goes on without the others, which are lost for good.
type SurviveConfig struct {
	// Dir is the member's data directory, whose store does not run. It is left as it is.
	Dir string
	// To is the data directory to make for a store of one member; it must not exist.
	To string
	// Name and Address are the member's, as in Peers.
	Name, Address string
	// Bump is as in RestoreConfig: this member may lack writes that clients have seen.
	Bump uint64
	// Server has the bounds of the store.
	Server ServerConfig
}

// Survive makes a store of one member of what a member of several has, all of its log included: each entry may have been
// answered to a client. It gets an identity of its own: members of before, should they come back, are none of it.
func Survive(ctx context.Context, c SurviveConfig) (info snapshotfile.Info, err error) {
	copied := c.To + ".copy"
	file := c.To + ".snapshot"
	clean := func() error { return errors.Join(os.RemoveAll(copied), os.RemoveAll(file)) }
	if err := clean(); err != nil { // of one that was broken off
		return info, err
	}
	defer func() { err = errors.Join(err, clean()) }()
	if err := os.CopyFS(copied, os.DirFS(c.Dir)); err != nil {
		return info, fmt.Errorf("copy the store in %s: %w", c.Dir, err)
	}
	if c.Server.Logger == nil {
		c.Server.Logger = slog.New(slog.DiscardHandler)
	}
	if err := memberlog.CommitAll(copied, zaplog.To(c.Server.Logger, func(string) {})); err != nil {
		return info, err
	}
	if err := c.snapshot(ctx, copied, file); err != nil {
		return info, err
	}
	if info, err = snapshotfile.Check(file); err != nil {
		return info, err
	}
	m := AloneAs(c.Name, c.Address)
	return info, Restore(RestoreConfig{File: file, Dir: c.To, Bump: c.Bump, Logger: c.Server.Logger, Member: &m})
}

// AloneAs is the only member of a store that begins with a snapshot, with the name and address that it has in Peers, and an identity of
// its own.
func AloneAs(name, address string) Member {
	var token [16]byte
	_, _ = rand.Read(token[:]) // it never fails
	return Member{Name: name, InitialCluster: name + "=https://" + address, Token: hex.EncodeToString(token[:])}
}

// snapshot starts the copy as if there had never been other members, and saves it.
func (c SurviveConfig) snapshot(ctx context.Context, dir, file string) (err error) {
	cfg := c.Server
	cfg.Dir, cfg.Peers, cfg.alone = dir, nil, true
	s, err := Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("save the store: %w", err)
	}
	_, err = s.Store().Backup(ctx, f)
	return errors.Join(err, f.Sync(), f.Close())
}
