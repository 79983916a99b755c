// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api/kindcodec"
	"github.com/wasmplane/wasmplane/core/api/strategic"
	"github.com/wasmplane/wasmplane/core/api/unread"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/structural"
)

// EncodeStorage writes an internal object as upstream stores it: in the
// storage version, as protobuf with the k8s\0 prefix or as JSON.
func (c *Contract) EncodeStorage(r *Resource, internal runtime.Object) ([]byte, error) {
	v, err := r.storage.Versioned(internal)
	if err != nil {
		return nil, fmt.Errorf("convert %s to its storage version %s: %w", r.GroupResource, r.StorageVersion, err)
	}
	return r.storage.Encode(v, r.storageMedia)
}

// DecodeStorage reads a stored value: protobuf, JSON or CBOR, in any version
// that the contract knows. The answer is in the storage version, defaulted; a
// custom resource is answered as it was stored.
func (c *Contract) DecodeStorage(r *Resource, data []byte) (*object.Object, error) {
	if r.Custom != nil {
		o, _, err := r.decodeCustom(data)
		return o, err
	}
	o, outdated, err := r.decodeStored(data)
	if err != nil {
		return nil, err
	}
	return r.stored(o, outdated), nil
}

func (r *Resource) stored(o runtime.Object, outdated bool) *object.Object {
	s := object.FromStored(r.storage, o, r.storageMedia)
	if outdated {
		s.MarkOutdated()
	}
	return s
}

// Outdated tells whether the store has an object in another version, or in another media type, than it would
// be written in now: an update that changes nothing then writes it all the same.
func (r *Resource) Outdated(o *object.Object) bool {
	if r.Custom != nil {
		return o.Kind().Version != r.StorageVersion.Version
	}
	return o.Outdated()
}

// decodeStored answers in the storage version. outdated: the value is in another one, or in another media type.
func (r *Resource) decodeStored(data []byte) (o runtime.Object, outdated bool, err error) {
	o, gvk, err := r.storage.DecodeStored(data)
	if err != nil {
		return nil, false, err
	}
	if gvk == r.storage.Kind() {
		return o, bytes.HasPrefix(data, []byte("k8s\x00")) != (r.storageMedia == object.Protobuf), nil
	}
	o, err = r.fromOtherVersion(o, gvk)
	return o, true, err
}

// fromOtherVersion brings what an older or newer server stored to the storage version.
func (r *Resource) fromOtherVersion(o runtime.Object, gvk schema.GroupVersionKind) (runtime.Object, error) {
	internal, err := r.scheme.UnsafeConvertToVersion(o, schema.GroupVersion{Group: r.Group, Version: runtime.APIVersionInternal})
	if err != nil {
		return nil, fmt.Errorf("convert a stored %s to internal: %w", gvk, err)
	}
	return r.storage.Versioned(internal)
}

// WatchDecoder turns stored values into objects, labels and selectable fields,
// with metadata.resourceVersion set to the revision: what the watch cache keeps.
func (c *Contract) WatchDecoder(
	r *Resource,
) func(key string, value []byte, revision int64) (*object.Object, labels.Set, fields.Set, error) {
	if r.Custom != nil {
		return r.customDecoder()
	}
	return func(key string, value []byte, revision int64) (*object.Object, labels.Set, fields.Set, error) {
		if o, l, f, ok := r.unread(value, revision); ok {
			return o, l, f, nil
		}
		o, outdated, err := r.decodeStored(value)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("key %s: %w", key, err)
		}
		m, err := meta.Accessor(o)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("key %s: %w", key, err)
		}
		m.SetResourceVersion(revisionText(revision))
		internal, err := r.storage.Internal(o)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("key %s: %w", key, err)
		}
		l, f, err := r.Attrs(internal)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("key %s: labels and fields: %w", key, err)
		}
		return r.stored(o, outdated), l, f, nil
	}
}

// unread is what the watch cache keeps of a value, where this can be said without decoding it.
func (r *Resource) unread(value []byte, revision int64) (*object.Object, labels.Set, fields.Set, bool) {
	if r.storageMedia != object.Protobuf {
		return nil, nil, nil, false
	}
	v, ok := unread.Open(r.storage.Kind(), value)
	if !ok {
		return nil, nil, nil, false
	}
	return object.FromPacked(r.storage, v.At(revisionText(revision)), object.Protobuf), v.Labels, v.Fields, true
}

// DecodeStrict reads a request body. strict lists unknown and duplicate fields,
// in upstream's words, for the caller to ignore, warn of or refuse as
// fieldValidation says; err is an API status. The object is not defaulted.
func (c *Contract) DecodeStrict(r *Resource, version string, data []byte, mediaType string) (o runtime.Object, strict []error, err error) {
	if r.Custom != nil {
		v, err := r.Custom.Version(version)
		if err != nil {
			return nil, nil, apierrors.NewInternalError(err)
		}
		return v.DecodeStrict(data, mediaType)
	}
	cd, err := r.builtin(version)
	if err != nil {
		return nil, nil, err
	}
	return cd.DecodeStrict(data, mediaType)
}

// builtin is the codec of one version of a row that is built in.
func (r *Resource) builtin(version string) (*kindcodec.Codec, error) {
	cd, ok := r.codecs[version].(*kindcodec.Codec)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s is not served in version %q", r.GroupResource, version))
	}
	return cd, nil
}

// StrictError is the refusal of a body with unknown or duplicate fields, for fieldValidation=Strict.
func (c *Contract) StrictError(r *Resource, version string, strict []error) error {
	if len(strict) == 0 {
		return nil
	}
	gvk := r.GVK(version)
	return kindcodec.Refusal(gvk, &gvk, nil, runtime.NewStrictDecodingError(strict))
}

// StrategicMerge applies a strategic merge patch to an object of one version,
// which it leaves as it is. The answer is the caller's, and is not defaulted.
// unknown lists the fields that the kind does not have, where strict asks for them.
func (c *Contract) StrategicMerge(r *Resource, version string, live runtime.Object, patch map[string]any,
	strict bool,
) (o runtime.Object, unknown []error, err error) {
	m, err := c.merger(r, version, strict)
	if err != nil {
		return nil, nil, err
	}
	return m.Merge(live, patch)
}

func (c *Contract) merger(r *Resource, version string, strict bool) (*strategic.Merger, error) {
	cd, err := r.builtin(version)
	if err != nil {
		return nil, err
	}
	t := cd.Type()
	return &strategic.Merger{Kind: cd.Kind(), Type: t, Structure: c.models.structure.Of(t), Strict: strict}, nil
}

// AsStored makes of the versioned object that was written what readers of it will
// find: with the defaults of fields that the strategy filled or emptied, and
// without the empty lists and maps that protobuf does not keep.
func (c *Contract) AsStored(r *Resource, o runtime.Object) {
	if r.Custom != nil {
		return
	}
	if r.storageMedia == object.Protobuf {
		v := reflect.ValueOf(o).Elem()
		structural.DropEmpty(c.models.structure.Of(v.Type()), v)
	}
	r.scheme.Default(o)
}
