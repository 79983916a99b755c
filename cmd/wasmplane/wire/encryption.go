// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"fmt"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/storagekey"
	"github.com/wasmplane/wasmplane/core/apiserver/health"
	"github.com/wasmplane/wasmplane/core/store/encryption"
)

// encrypt puts encryption at rest before the store, where the configuration asks for it.
func (s *server) encrypt(ctx context.Context, contract *api.Contract) error {
	if s.o.Config.Store.EncryptionConfigFile == "" {
		return nil
	}
	file := s.o.Config.Path(s.o.Config.Store.EncryptionConfigFile)
	s.following("the encryption configuration", func(ctx context.Context) error {
		if err := s.sealed.Reload(ctx); err != nil {
			return err
		}
		s.cache.Reread()
		return nil
	}, file)
	var err error
	if s.sealed, err = encryption.New(ctx, encryption.Config{
		Store: s.store, File: file, Resource: storagekey.Resources(contract), Log: s.o.Logger,
		Changed: func() { s.cache.Reread() },
	}); err != nil {
		return fmt.Errorf("store.encryptionConfigFile: %w", err)
	}
	s.store = s.sealed
	inner := s.closeStore
	s.closeStore = func() error {
		s.sealed.Close()
		return inner()
	}
	return nil
}

// followPlugins keeps in touch with the KMS plugins of encryption at rest.
func (s *server) followPlugins(ctx context.Context) error {
	if s.sealed == nil {
		<-ctx.Done()
		return nil
	}
	return s.sealed.Run(ctx)
}

// readiness is what /readyz asks.
func (s *server) readiness() []health.Check {
	checks := []health.Check{{Name: "etcd", Check: s.checkStore}, {Name: "watch-cache", Check: s.checkCache}, {Name: "store-space", Check: s.room.Check, Advisory: true}}
	if s.sealed != nil {
		checks = append(checks, health.Check{Name: "kms-providers", Check: s.sealed.Check})
	}
	return checks
}
