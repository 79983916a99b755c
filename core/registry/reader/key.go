// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
	"github.com/wasmplane/wasmplane/core/watchcache/pairs"
)

// Root of the key space, as Kubernetes has it.
const Root = "/registry/"

// Prefix of the resource's keys, with its slash.
func (r *Reader) Prefix() string { return Prefix(r.res) }

// namespacePrefix is the prefix of one namespace's keys; all of them for "".
func (r *Reader) namespacePrefix(namespace string) string {
	if !r.res.Namespaced || namespace == "" {
		return r.Prefix()
	}
	return r.Prefix() + namespace + "/"
}

// Key is the key of one object. Namespace and name come from a URL or a decoded object:
// what could climb out of its prefix is refused in upstream's words.
func (r *Reader) Key(namespace, name string) (string, error) {
	if r.res.Namespaced {
		if namespace == "" {
			return "", apierrors.NewBadRequest("Namespace parameter required.")
		}
		if err := pathSegment("Namespace", namespace); err != nil {
			return "", err
		}
	}
	if name == "" {
		return "", apierrors.NewBadRequest("Name parameter required.")
	}
	if err := pathSegment("Name", name); err != nil {
		return "", err
	}
	return r.namespacePrefix(namespace) + name, nil
}

func pathSegment(what, s string) error {
	if s == "." || s == ".." || strings.ContainsAny(s, "/%") {
		return apierrors.NewBadRequest(fmt.Sprintf("%s parameter invalid: %q: may not be '.' or '..' and may not contain '/' or '%%'", what, s))
	}
	return nil
}

// Item decodes a stored key.
func (r *Reader) Item(kv store.KV) (*watchcache.Item, error) {
	if kv.Unreadable != nil {
		return nil, r.StoreError(kv.Unreadable, "read", LastSegment(kv.Key))
	}
	obj, lbl, fld, err := r.decode(kv.Key, kv.Value, kv.ModRevision)
	if err != nil {
		return nil, corrupt(&store.CorruptError{Key: kv.Key, Revision: kv.ModRevision, Undecodable: true, Err: err})
	}
	return &watchcache.Item{Key: kv.Key, Revision: kv.ModRevision, Object: obj, Labels: pairs.Of(lbl), Fields: pairs.Of(fld)}, nil
}

// Stored reads one key from the store. An item that the cache holds at the same
// revision is used instead of decoding the value again. nil = there is none.
func (r *Reader) Stored(ctx context.Context, key string) (*watchcache.Item, error) {
	kv, err := r.cfg.Store.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, r.StoreError(err, "get", LastSegment(key))
	}
	if cached, _, ok := r.cached.Get(key); ok && cached.Revision == kv.ModRevision {
		return cached, nil
	}
	return r.Item(kv)
}

// LastSegment is the name in a key.
func LastSegment(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }
