// SPDX-License-Identifier: Apache-2.0

// Package encryption is a store that keeps values encrypted in another one, as an
// EncryptionConfiguration of apiserver.config.k8s.io says.
//
// Values have upstream's prefixes ("k8s:enc:aesgcm:v1:key1:") and are bound to
// their keys, so that what is written here is read by an upstream Kubernetes with
// the same configuration, and the other way round. Readers of the store never see
// a ciphertext: a value that cannot be decrypted is an error that names its key,
// and in lists and watches an item that says so, never a missing one.
package encryption

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/encryption/kms"
)

// Config of a store.
type Config struct {
	// Store holds the values as they are written.
	Store store.Store
	// File is the EncryptionConfiguration.
	File string
	// Resource names the resource of a key; false: its value is never encrypted.
	Resource func(key string) (schema.GroupResource, bool)
	// Changed is called when values can be read that could not be before, because a
	// KMS plugin answers at last; nil: nobody wants to know.
	Changed func()
	Log     *slog.Logger
}

// Store implements store.Store, store.LeanStore and store.Rewriter.
type Store struct {
	cfg     Config
	current atomic.Pointer[generation]

	loading sync.Mutex // held while a file is taken on
	retired []*kms.Provider
}

// generation is one version of the file.
type generation struct {
	transformers transformers
	providers    []*kms.Provider // of KMS plugins
}

var (
	_ store.LeanStore = (*Store)(nil)
	_ store.Rewriter  = (*Store)(nil)
)

// New reads the file. One that is wrong is an error: starting without would write
// secrets in the clear. A KMS plugin that does not answer yet is none: it may be a
// pod of this very cluster. Until it does, Check fails, and so do reads and writes
// of what it is for.
func New(ctx context.Context, cfg Config) (*Store, error) {
	switch {
	case cfg.Store == nil:
		return nil, errors.New("encryption: Config.Store is missing")
	case cfg.Resource == nil:
		return nil, errors.New("encryption: Config.Resource is missing")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Store{cfg: cfg}
	next, err := s.load(ctx)
	if err != nil {
		return nil, err
	}
	s.poll(ctx, next.providers)
	s.current.Store(next)
	return s, nil
}

// Reload takes the file on as it is now. What is written from then on is written
// with its first keys; what was written before is read with the keys that it has.
// KMS plugins that are new have to answer, or nothing changes.
func (s *Store) Reload(ctx context.Context) error {
	s.loading.Lock()
	defer s.loading.Unlock()
	before := s.current.Load()
	next, err := s.load(ctx)
	if err != nil {
		return err
	}
	for _, p := range next.providers {
		if slices.Contains(before.providers, p) {
			continue
		}
		if err := p.Poll(ctx); err != nil {
			closeAll(next.providers, before.providers)
			return fmt.Errorf("%s: %w", s.cfg.File, err)
		}
	}
	s.current.Store(next)
	// Requests that are under way still read by the old plugins: those end with
	// the reload after this one.
	closeAll(s.retired, next.providers)
	s.retired = slices.DeleteFunc(slices.Clone(before.providers), func(p *kms.Provider) bool { return slices.Contains(next.providers, p) })
	return nil
}

// load reads the file. Plugins that it names as before keep their connections and seeds.
func (s *Store) load(ctx context.Context) (*generation, error) {
	var known []*kms.Provider
	if before := s.current.Load(); before != nil {
		known = before.providers
	}
	next := &generation{}
	var err error
	next.transformers, err = load(s.cfg.File, func(c kms.Config) (*kms.Provider, error) {
		for _, p := range slices.Concat(known, next.providers) {
			if p.Same(c) {
				if !slices.Contains(next.providers, p) {
					next.providers = append(next.providers, p)
				}
				return p, nil
			}
		}
		c.Log = s.cfg.Log
		p, err := kms.Open(ctx, c)
		if err == nil {
			next.providers = append(next.providers, p)
		}
		return p, err
	})
	if err != nil {
		closeAll(next.providers, known)
		return nil, err
	}
	return next, nil
}

func closeAll(list, but []*kms.Provider) {
	for _, p := range list {
		if !slices.Contains(but, p) {
			p.Close()
		}
	}
}

// poll asks plugins for their status; true: one became usable by that.
func (s *Store) poll(ctx context.Context, providers []*kms.Provider) (news bool) {
	for _, p := range providers {
		was, usable := p.Check(), p.Usable()
		err := p.Poll(ctx)
		switch {
		case err != nil && ctx.Err() == nil && (was == nil || was.Error() != err.Error()):
			s.cfg.Log.ErrorContext(ctx, "a KMS plugin does not answer as it should: what it encrypts can soon no longer be written", "error", err)
		case err == nil && was != nil:
			s.cfg.Log.InfoContext(ctx, "a KMS plugin answers", "plugin", string(p.Transformer().Prefix))
		}
		news = news || !usable && p.Usable()
	}
	return news
}

// Run asks KMS plugins for their status until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		due := slices.DeleteFunc(slices.Clone(s.current.Load().providers), func(p *kms.Provider) bool { return time.Now().Before(p.Due()) })
		if s.poll(ctx, due) && s.cfg.Changed != nil {
			s.cfg.Changed()
		}
	}
}

// Check is nil while every KMS plugin answers as it should.
func (s *Store) Check(context.Context) error {
	var errs []error
	for _, p := range s.current.Load().providers {
		errs = append(errs, p.Check())
	}
	return errors.Join(errs...)
}

// Close ends the connections to KMS plugins. The store below stays open.
func (s *Store) Close() {
	s.loading.Lock()
	defer s.loading.Unlock()
	closeAll(s.retired, nil)
	closeAll(s.current.Load().providers, nil)
}

// of is the transformer of a key; nil where the value is as it is.
func (s *Store) of(key string) value.Transformer {
	gr, ok := s.cfg.Resource(key)
	if !ok {
		return nil
	}
	if t := s.current.Load().transformers.of(gr); t != nil {
		return t
	}
	return plain
}

// plain refuses what is encrypted where nothing says how.
var plain = identity.NewEncryptCheckTransformer()

// open decrypts in place. stale: the value should be written again.
func (s *Store) open(ctx context.Context, kv *store.KV) (stale bool, err error) {
	t := s.of(kv.Key)
	if t == nil || kv.Value == nil {
		return false, nil
	}
	plain, stale, err := t.TransformFromStorage(ctx, kv.Value, value.DefaultContext(kv.Key))
	if err != nil {
		// Upstream's words, and what to do.
		err = fmt.Errorf("unable to transform key %q: %w; the encryption configuration %s lacks the key that it was written with, or the KMS plugin that has it does not answer", kv.Key, err, s.cfg.File)
		return false, &store.CorruptError{Key: kv.Key, Revision: kv.ModRevision, Err: err}
	}
	kv.Value = plain
	return stale, nil
}

// mark is open for lists and watches, which go on.
func (s *Store) mark(ctx context.Context, kv *store.KV) {
	if _, err := s.open(ctx, kv); err != nil {
		kv.Value, kv.Unreadable = nil, err
	}
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) (store.KV, error) {
	kv, err := s.cfg.Store.Get(ctx, key)
	if err != nil {
		return kv, err
	}
	if _, err := s.open(ctx, &kv); err != nil {
		return store.KV{}, err
	}
	return kv, nil
}

// Stale implements store.Rewriter: whether a value would be written otherwise today.
func (s *Store) Stale(ctx context.Context, key string) (bool, error) {
	if t := s.of(key); t == nil {
		return false, nil
	}
	kv, err := s.cfg.Store.Get(ctx, key)
	if err != nil {
		return false, err
	}
	return s.open(ctx, &kv)
}

// Put implements store.Store.
func (s *Store) Put(ctx context.Context, key string, v []byte, expect int64, ttl time.Duration) (int64, error) {
	return s.PutFenced(ctx, key, v, expect, ttl, store.Fences{})
}

// PutFenced implements store.Fenced.
func (s *Store) PutFenced(ctx context.Context, key string, v []byte, expect int64, ttl time.Duration, f store.Fences) (int64, error) {
	if t := s.of(key); t != nil {
		sealed, err := t.TransformToStorage(ctx, v, value.DefaultContext(key))
		if err != nil {
			return 0, fmt.Errorf("encrypt %s: %w", key, err)
		}
		v = sealed
	}
	revision, err := store.PutFenced(ctx, s.cfg.Store, key, v, expect, ttl, f)
	return revision, s.conflict(ctx, err)
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, key string, expect int64) (int64, error) {
	return s.DeleteFenced(ctx, key, expect, store.Fences{})
}

// DeleteFenced implements store.Fenced.
func (s *Store) DeleteFenced(ctx context.Context, key string, expect int64, f store.Fences) (int64, error) {
	revision, err := store.DeleteFenced(ctx, s.cfg.Store, key, expect, f)
	return revision, s.conflict(ctx, err)
}

// conflict decrypts what was found instead of what was expected.
func (s *Store) conflict(ctx context.Context, err error) error {
	var found *store.ConflictError
	if !errors.As(err, &found) || found.Current.ModRevision == 0 {
		return err
	}
	if _, openErr := s.open(ctx, &found.Current); openErr != nil {
		return openErr
	}
	return err
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix string, o store.ListOptions) (store.Page, error) {
	page, err := s.cfg.Store.List(ctx, prefix, o)
	for i := range page.Items {
		s.mark(ctx, &page.Items[i])
	}
	return page, err
}

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	w, err := s.cfg.Store.Watch(ctx, prefix, from)
	return s.watch(ctx, w, err)
}

// WatchLean implements store.LeanStore.
func (s *Store) WatchLean(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	w, err := store.WatchLean(ctx, s.cfg.Store, prefix, from)
	return s.watch(ctx, w, err)
}

func (s *Store) watch(ctx context.Context, inner store.Watcher, err error) (store.Watcher, error) {
	if err != nil {
		return nil, err
	}
	w := &watcher{Watcher: inner, batches: make(chan store.Batch, 16)}
	run.Go("encryption: watch", func() error { // ends with the inner watch, which ends with ctx
		defer close(w.batches)
		for b := range inner.Batches() {
			for i := range b.Events {
				s.mark(ctx, &b.Events[i].KV)
				s.mark(ctx, &b.Events[i].Prev)
			}
			select {
			case w.batches <- b:
			case <-ctx.Done():
				return nil
			}
		}
		return nil
	})
	return w, nil
}

type watcher struct {
	store.Watcher
	batches chan store.Batch
}

// Batches implements store.Watcher.
func (w *watcher) Batches() <-chan store.Batch { return w.batches }

// Revision implements store.Store.
func (s *Store) Revision(ctx context.Context) (int64, error) { return s.cfg.Store.Revision(ctx) }

// Compact implements store.Store.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	return s.cfg.Store.Compact(ctx, revision)
}
