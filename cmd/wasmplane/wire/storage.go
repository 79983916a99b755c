// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/api/storagekey"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/encryption"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/etcd/diskspeed"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
	"github.com/wasmplane/wasmplane/core/store/measured"
	"github.com/wasmplane/wasmplane/core/store/space"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// storage is the store with what stands before it, up to the watch cache.
type storage struct {
	disk     *etcdclient.Store // as it lies on disk; for backups
	store    store.Store
	sealed   *encryption.Store // nil = nothing is encrypted at rest
	cache    *watchcache.Cache
	room     *space.Keeper
	size     *measured.Size
	done     <-chan struct{} // nil = the store has no end of its own
	why      func(context.Context) error
	members  store.Membership // nil = it is an external etcd
	watch    *diskspeed.Watch // nil = the store is in other processes
	closeAll func() error
	compact  func(context.Context) error
}

func openStorage(ctx context.Context, b base) (_ *storage, err error) {
	s, gauge, err := openEtcd(ctx, b)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.closeAll())
		}
	}()
	if err := s.checkVersion(ctx, b); err != nil {
		return nil, err
	}
	if s.store, err = measured.New(s.store, storagekey.Resources(b.contract), b.metrics); err != nil {
		return nil, err
	}
	if err := s.encrypt(ctx, b); err != nil {
		return nil, err
	}
	if s.cache, err = watchcache.New(watchcache.Config{Store: s.store, Logger: b.Options.Logger, Metrics: b.metrics}); err != nil {
		return nil, err
	}
	if err := s.shareRoom(b, gauge); err != nil {
		return nil, err
	}
	if err := b.metrics.Register(watchcache.NewCollector(s.cache, storagekey.Resources(b.contract))); err != nil {
		return nil, fmt.Errorf("register the metrics of the watch cache: %w", err)
	}
	if s.size, err = measured.NewSize(s.disk.Size, b.metrics); err != nil {
		return nil, err
	}
	if s.members != nil && !b.Around.Light {
		if s.watch, err = diskspeed.NewWatch(b.slowDisk, b.metrics, b.Options.Logger); err != nil {
			return nil, err
		}
	}
	compactor, err := store.NewCompactor(store.CompactorConfig{
		Store: s.store, Interval: time.Duration(b.Options.Config.Store.CompactionInterval), Logger: b.Options.Logger,
	})
	if err != nil {
		return nil, err
	}
	s.compact = compactor.Run
	return s, nil
}

// openEtcd opens the store itself: an external one, that of the servers that keep it, or one in this process. The
// last two have a gauge of their room.
func openEtcd(ctx context.Context, b base) (*storage, space.Gauge, error) {
	o := b.Options
	c := o.Config.Store
	if b.Around.Light {
		e, err := etcd.DialMembers(ctx, b.Stores())
		if err != nil {
			return nil, nil, err
		}
		return &storage{disk: e.Store(), store: e.Store(), closeAll: e.Close, done: e.Done(), why: e.Err, members: e}, e, nil
	}
	if len(c.Endpoints) > 0 {
		st, err := etcdclient.Dial(ctx, etcdclient.Config{
			Endpoints: c.Endpoints, CAFile: o.Config.Path(c.CAFile), CertFile: o.Config.Path(c.CertFile),
			KeyFile: o.Config.Path(c.KeyFile), Logger: o.Logger,
		})
		if err != nil {
			return nil, nil, err
		}
		return &storage{disk: st, store: st, closeAll: st.Close}, nil, nil
	}
	peers, err := b.Peers()
	if err != nil {
		return nil, nil, err
	}
	if peers != nil {
		peers.Admit = b.lights.admit
	}
	e, err := etcd.Start(ctx, etcd.ServerConfig{
		Dir: o.Dir.Etcd(), Quota: c.HardQuota(), Peers: peers, Progress: o.Inform, Fatal: o.End, Logger: o.Logger,
	})
	if err != nil {
		return nil, nil, err
	}
	return &storage{disk: e.Store(), store: e.Store(), closeAll: e.Close, done: e.Done(), why: e.Err, members: e}, e, nil
}

// slowDisk tells who operates the server that its store is held up.
func (b base) slowDisk(ctx context.Context, text string) {
	b.Options.Logger.WarnContext(ctx, text, "directory", b.Options.Dir.Etcd())
	if err := b.Warn(ctx, b.internal.Kube, "SlowDisk", text); err != nil && ctx.Err() == nil {
		b.Options.Logger.WarnContext(ctx, "the event about a slow disk was not written", "error", err)
	}
}

// encrypt puts encryption at rest before the store, where the configuration asks for it.
func (s *storage) encrypt(ctx context.Context, b base) error {
	if b.Options.Config.Store.EncryptionConfigFile == "" {
		return nil
	}
	file := b.Options.Config.Path(b.Options.Config.Store.EncryptionConfigFile)
	b.follows.add("the encryption configuration", func(ctx context.Context) error {
		if err := s.sealed.Reload(ctx); err != nil {
			return err
		}
		s.cache.Reread()
		return nil
	}, file)
	sealed, err := encryption.New(ctx, encryption.Config{
		Store: s.store, File: file, Resource: storagekey.Resources(b.contract), Log: b.Options.Logger,
		Changed: func() { s.cache.Reread() },
	})
	if err != nil {
		return fmt.Errorf("store.encryptionConfigFile: %w", err)
	}
	inner := s.closeAll
	s.sealed, s.store, s.closeAll = sealed, sealed, func() error {
		sealed.Close()
		return inner()
	}
	return nil
}

// shareRoom shares out the room in the store. gauge is nil where it is not ours to watch.
func (s *storage) shareRoom(b base, gauge space.Gauge) (err error) {
	c := b.Options.Config.Store
	s.room, err = space.New(space.Config{
		Store: s.store, Gauge: gauge, Quota: c.QuotaBytes, NamespaceQuota: namespaceShare(c),
		Namespace: func(name string) int64 {
			if name == metav1.NamespaceSystem {
				return 0 // the cluster's own
			}
			return s.cache.NamespaceBytes(name)
		},
		Seen:    func() int64 { return s.cache.Revision() },
		Metrics: b.metrics, Logger: b.Options.Logger,
	})
	return err
}

// namespaceShare is the most that one namespace may hold of the store; 0 = all.
func namespaceShare(c config.Store) int64 {
	switch c.NamespaceQuotaBytes {
	case 0:
		return c.QuotaBytes / 4
	case -1:
		return 0
	}
	return c.NamespaceQuotaBytes
}

// wait waits for the store's end, or ctx's.
func (s *storage) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.done:
		return s.why(ctx)
	}
}

// upkeep is what the store needs while it is used.
func (s *storage) upkeep() []func(context.Context) error {
	work := []func(context.Context) error{s.cache.Run, s.compact, s.room.Run, s.size.Run}
	if s.watch != nil {
		work = append(work, s.watch.Run)
	}
	if s.sealed != nil {
		work = append(work, s.sealed.Run) // keeps in touch with KMS plugins
	}
	return work
}

// answers says whether the store does.
func (s *storage) answers(ctx context.Context) error {
	_, err := s.store.Revision(ctx)
	return err
}
