// Package watchcache keeps the cluster's state in memory and fans changes out.
//
// One watch over the whole key space feeds it, split by resource, and nothing
// else does: a write of another apiserver on the same store arrives exactly like
// one of our own. The store's progress tells how fresh the cache is, so a list
// is consistent at a stated revision, across resources too.
package watchcache

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/wasmplane/wasmplane/core/object"
)

// Item is one object as of a revision. It is shared; nobody changes it.
type Item struct {
	Key      string
	Revision int64
	// Object in the storage version, with metadata.resourceVersion set to Revision.
	Object *object.Object
	Labels labels.Set
	Fields fields.Set
}

// Decoder turns a stored value into what an Item needs besides key and revision.
type Decoder func(key string, value []byte, revision int64) (*object.Object, labels.Set, fields.Set, error)
