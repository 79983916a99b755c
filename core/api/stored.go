// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/recognizer"

	"github.com/wasmplane/wasmplane/core/api/envelope"
	"github.com/wasmplane/wasmplane/core/object"
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
	o, err := r.decodeStored(data)
	if err != nil {
		return nil, err
	}
	return object.FromStored(r.storage, o, r.storageMedia), nil
}

func (r *Resource) decodeStored(data []byte) (runtime.Object, error) {
	media := object.JSON
	if bytes.HasPrefix(data, []byte(envelope.Prefix)) {
		media = object.Protobuf
		if o := r.storage.quickProto(data); o != nil {
			r.scheme.Default(o)
			return o, nil
		}
	}
	s, err := r.storage.serializer(media, false)
	if err != nil {
		return nil, err
	}
	if d, ok := r.storage.wire[object.CBOR].lenient.(recognizer.RecognizingDecoder); ok && media == object.JSON {
		if yes, _, _ := d.RecognizesData(data); yes {
			s = r.storage.wire[object.CBOR].lenient
		}
	}
	o, gvk, err := s.Decode(data, &r.storage.gvk, r.storage.empty())
	if err != nil {
		return nil, fmt.Errorf("decode a stored %s: %w", r.Kind, err)
	}
	r.scheme.Default(o)
	if *gvk == r.storage.gvk {
		o.GetObjectKind().SetGroupVersionKind(r.storage.gvk)
		return o, nil
	}
	return r.fromOtherVersion(o, gvk)
}

// fromOtherVersion brings what an older or newer server stored to the storage version.
func (r *Resource) fromOtherVersion(o runtime.Object, gvk *schema.GroupVersionKind) (runtime.Object, error) {
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
		o, err := r.decodeStored(value)
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
		return object.FromStored(r.storage, o, r.storageMedia), l, f, nil
	}
}
