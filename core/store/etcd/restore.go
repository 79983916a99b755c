// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// RestoreConfig says what becomes of a snapshot.
type RestoreConfig struct {
	// File is the snapshot; snapshotfile.Check has found nothing wrong with it.
	File string
	// Dir is the data directory to make; it must not exist.
	Dir string
	// Bump is added to the newest revision, and everything up to there is marked as
	// compacted: a client that had seen states after the snapshot is told that its
	// revision is too old, instead of being served another history under the same numbers.
	Bump   uint64
	Logger *slog.Logger // nil = discard
	// Member of an external cluster that Dir is for; nil: it is for Start.
	Member *Member
}

// Member is one server of an etcd cluster that begins with a snapshot. All members
// are restored from the same one, with the same InitialCluster and Token.
type Member struct {
	Name string
	// InitialCluster is every member, this one too: NAME=PEER_URL,...
	InitialCluster string
	// Token keeps the cluster apart from one that it was before; "" = etcd's own default.
	Token string
}

// place puts a snapshot's target into the cluster that it is for.
func (m *Member) place(to *snapshot.RestoreConfig) error {
	peers, err := types.NewURLsMap(m.InitialCluster)
	if err != nil {
		return fmt.Errorf("the members of the cluster: expected NAME=PEER_URL,..., found %q: %w", m.InitialCluster, err)
	}
	own, ok := peers[m.Name]
	if !ok {
		return fmt.Errorf("%s is not among the members of %q", m.Name, m.InitialCluster)
	}
	to.Name, to.PeerURLs, to.InitialCluster = m.Name, own.StringSlice(), m.InitialCluster
	to.InitialClusterToken = cmp.Or(m.Token, to.InitialClusterToken)
	return nil
}

// Restore makes a data directory for Start out of a snapshot.
func Restore(cfg RestoreConfig) (err error) {
	if cfg.Bump == 0 {
		return errors.New("restore: Bump is 0: clients would be left in a past that did not happen")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("restore %s: %v", cfg.File, r)
		}
	}()
	complete, _, err := ServerConfig{Dir: cfg.Dir, Logger: cfg.Logger}.complete()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(complete.Dir), 0o700); err != nil {
		return fmt.Errorf("restore %s: %w", cfg.File, err)
	}
	e := complete.embed(nil)
	log, err := zapOf(e)
	if err != nil {
		return err
	}
	to := snapshot.RestoreConfig{
		SnapshotPath: cfg.File, OutputDataDir: complete.Dir, Name: e.Name, PeerURLs: []string{e.AdvertisePeerUrls[0].String()},
		InitialCluster: e.InitialCluster, InitialClusterToken: e.InitialClusterToken,
		RevisionBump: cfg.Bump, MarkCompacted: true,
	}
	if cfg.Member != nil {
		if err := cfg.Member.place(&to); err != nil {
			return fmt.Errorf("restore %s: %w", cfg.File, err)
		}
	}
	if err := snapshot.NewV3(log).Restore(to); err != nil {
		return fmt.Errorf("restore %s into %s: %w", cfg.File, complete.Dir, err)
	}
	return os.Chmod(complete.Dir, 0o700)
}

// zapOf is the logger that a server of e would have.
func zapOf(e *embed.Config) (*zap.Logger, error) {
	if err := e.ZapLoggerBuilder(e); err != nil {
		return nil, fmt.Errorf("the store's logger: %w", err)
	}
	return e.GetLogger(), nil
}
