package wire

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/store/encryption"
)

// encrypt puts encryption at rest before the store, where the configuration asks for it.
func (s *server) encrypt(contract *api.Contract) error {
	if s.o.Config.Store.EncryptionConfigFile == "" {
		return nil
	}
	file := s.relative(s.o.Config.Store.EncryptionConfigFile)
	var sealed *encryption.Store
	s.following("the encryption configuration", func(ctx context.Context) error {
		if err := sealed.Reload(ctx); err != nil {
			return err
		}
		s.cache.Reread()
		return nil
	}, file)
	var err error
	if sealed, err = encryption.New(encryption.Config{Store: s.store, File: file, Resource: resourceOfKey(contract), Log: s.o.Logger}); err != nil {
		return fmt.Errorf("store.encryptionConfigFile: %w", err)
	}
	s.store = sealed
	return nil
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
