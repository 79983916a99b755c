package wire

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/apiserver"
	"github.com/wasmplane/wasmplane/core/store/encryption"
)

// encrypt puts encryption at rest before the store, where the configuration asks for it.
func (s *server) encrypt(ctx context.Context, contract *api.Contract) error {
	if s.o.Config.Store.EncryptionConfigFile == "" {
		return nil
	}
	file := s.relative(s.o.Config.Store.EncryptionConfigFile)
	s.following("the encryption configuration", func(ctx context.Context) error {
		if err := s.sealed.Reload(ctx); err != nil {
			return err
		}
		s.cache.Reread()
		return nil
	}, file)
	var err error
	if s.sealed, err = encryption.New(ctx, encryption.Config{
		Store: s.store, File: file, Resource: resourceOfKey(contract), Log: s.o.Logger,
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
func (s *server) readiness() []apiserver.Check {
	checks := []apiserver.Check{{Name: "etcd", Check: s.checkStore}, {Name: "watch-cache", Check: s.checkCache}}
	if s.sealed != nil {
		checks = append(checks, apiserver.Check{Name: "kms-providers", Check: s.sealed.Check})
	}
	return checks
}

// resourceOfKey names the resource of a key of the store, as upstream's
// encryption does: built-in resources by their prefixes, custom ones by
// /registry/GROUP/RESOURCE/.
func resourceOfKey(contract *api.Contract) func(key string) (schema.GroupResource, bool) {
	known := map[string]schema.GroupResource{
		"ranges/serviceips":       {Resource: "serviceipallocations"},
		"ranges/servicenodeports": {Resource: "servicenodeportallocations"},
	}
	for _, r := range contract.Resources() {
		// Events and some others are served by two groups; the first one is where they are stored.
		if _, twice := known[r.StoragePrefix]; !twice && !r.Virtual {
			known[r.StoragePrefix] = r.GroupResource
		}
	}
	return func(key string) (schema.GroupResource, bool) {
		rest, ok := strings.CutPrefix(key, "/registry/")
		if !ok {
			return schema.GroupResource{}, false
		}
		first, rest, _ := strings.Cut(rest, "/")
		second, _, _ := strings.Cut(rest, "/")
		if gr, ok := known[first+"/"+second]; ok {
			return gr, true
		}
		if gr, ok := known[first]; ok {
			return gr, true
		}
		if strings.Contains(first, ".") && second != "" {
			return schema.GroupResource{Group: first, Resource: second}, true
		}
		return schema.GroupResource{}, false
	}
}
