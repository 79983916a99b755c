// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/envelope"
	"github.com/wasmplane/wasmplane/core/jsonscan"
	"github.com/wasmplane/wasmplane/core/object"
)

// Fields that all messages of the API have in common: an object and a list have
// their metadata as the first, a list has its items as the second.
const (
	metadataField = 1
	itemsField    = 2
)

// partialJSON is an object's PartialObjectMetadata as kind says. The metadata is
// cut out of the object's own encoding, which is made once for everybody:
// encoding a pod's metadata again costs ten times as much as finding its end.
func partialJSON(o *object.Object, kind schema.GroupVersionKind) ([]byte, error) {
	metadata, err := jsonMetadata(o)
	if err != nil {
		return nil, err
	}
	prefix := partialPrefix(kind)
	out := make([]byte, 0, len(prefix)+len(metadata)+1)
	return append(append(append(out, prefix...), metadata...), '}'), nil
}

// partialPrefix is what stands before the metadata of a PartialObjectMetadata.
func partialPrefix(kind schema.GroupVersionKind) []byte {
	return append(jsonHead(kind), `"metadata":`...)
}

// jsonMetadata is an object's metadata, not copied.
func jsonMetadata(o *object.Object) ([]byte, error) {
	data, err := o.Encoded(object.JSON)
	if err != nil {
		return nil, err
	}
	begin, end, err := metadataBounds(o)
	if err != nil {
		return nil, err
	}
	if end == 0 {
		return []byte("{}"), nil
	}
	return data[begin:end], nil
}

// metadataBounds is from where to where an object's metadata goes in its JSON,
// which is the same whenever it is made; zeros where there is none.
func metadataBounds(o *object.Object) (begin, end int, err error) {
	data, err := o.Encoded(object.JSON)
	if err != nil {
		return 0, 0, err
	}
	if begin, end, err = jsonscan.Member(data, "metadata"); err != nil {
		return 0, 0, fmt.Errorf("encoded %s: %w", o.Kind().Kind, err)
	}
	return begin, end, nil
}

// partialProto is the message of an object's PartialObjectMetadata, without an
// envelope. Every kind of the API that has a protobuf form has its metadata as
// field 1, as has PartialObjectMetadata.
func partialProto(o *object.Object) ([]byte, error) {
	if data := o.Packed(object.Protobuf); data != nil {
		return cutProto(o, data)
	}
	// What is packed as JSON would be decoded for each client.
	return o.Kept("partial", func() ([]byte, error) {
		versioned, err := o.Versioned()
		if err != nil {
			return nil, err
		}
		if _, ok := versioned.(interface{ Marshal() ([]byte, error) }); !ok { // a custom resource
			partial, err := api.Partial(versioned)
			if err != nil {
				return nil, err
			}
			return partial.Marshal()
		}
		data, err := o.Encoded(object.Protobuf)
		if err != nil {
			return nil, err
		}
		return cutProto(o, data)
	})
}

// cutProto cuts an object's metadata out of its protobuf.
func cutProto(o *object.Object, data []byte) ([]byte, error) {
	raw, err := envelope.Raw(data)
	if err != nil {
		return nil, fmt.Errorf("encoded %s: %w", o.Kind().Kind, err)
	}
	metadata, err := envelope.Field(raw, metadataField)
	if err != nil {
		return nil, fmt.Errorf("encoded %s: %w", o.Kind().Kind, err)
	}
	return append(envelope.Header(metadataField, len(metadata)), metadata...), nil
}

// partialBytes is a whole answer: PartialObjectMetadata as JSON or as protobuf in its envelope.
func partialBytes(o *object.Object, kind schema.GroupVersionKind, mediaType string) ([]byte, error) {
	if mediaType != object.Protobuf {
		return partialJSON(o, kind)
	}
	raw, err := partialProto(o)
	if err != nil {
		return nil, err
	}
	return envelope.Wrap(kind, raw)
}

// partialList is a PartialObjectMetadataList in pieces.
func partialList(kind schema.GroupVersionKind, mediaType string, list metav1.ListMeta, items []*object.Object) ([][]byte, error) {
	each := kind.GroupVersion().WithKind("PartialObjectMetadata")
	if mediaType == object.Protobuf {
		return protoPieces(kind, list, items, partialProto)
	}
	return jsonPieces(kind, list, items, nil, func(o *object.Object) ([]byte, error) { return partialJSON(o, each) })
}
