// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/json"

	"k8s.io/utils/lru"

	"github.com/wasmplane/wasmplane/plugins/abi/settingschema"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// mostSchemas bounds the schemas of settings that are kept, of at most 16 KiB each.
const mostSchemas = 512

// module is what a schema is known for: the digest that pins a module, in the namespace whose plugin had it loaded ("" = an
// operator's). So a tenant learns nothing of a module from which he has not loaded it himself.
type module struct{ namespace, digest string }

// schemas remembers the schemas of settings that modules have declared.
type schemas struct{ known *lru.Cache }

func newSchemas() schemas { return schemas{lru.New(mostSchemas)} }

// learn remembers what a module declares.
func (s schemas) learn(namespace, digest string, schema json.RawMessage) {
	s.known.Add(module{namespace, digest}, schema)
}

// CheckSettings holds an entry's settings against the schema of its module, if that is known: the entry pins the module by its digest,
// and this process has loaded it once for the same namespace. Otherwise it returns nil: nothing is fetched, and loading checks it.
func (l *Loader) CheckSettings(e *manifest.Entry) error {
	if e.Digest == "" {
		return nil
	}
	schema, ok := l.schemas.known.Get(module{e.Namespace, e.Digest})
	if !ok {
		return nil
	}
	settings, err := e.SettingsJSON()
	if err != nil {
		return err
	}
	return settingschema.Check(schema.(json.RawMessage), settings) //nolint:forcetypeassert // learn puts nothing else there
}
