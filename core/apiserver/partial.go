package apiserver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/object"
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
	apiVersion, name := kind.ToAPIVersionAndKind()
	return fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":`, name, apiVersion)
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
	if begin, end, err = jsonMember(data, "metadata"); err != nil {
		return 0, 0, fmt.Errorf("encoded %s: %w", o.Kind().Kind, err)
	}
	return begin, end, nil
}

// partialProto is the message of an object's PartialObjectMetadata, without an
// envelope. Every kind of the API that has a protobuf form has its metadata as
// field 1, as has PartialObjectMetadata.
func partialProto(o *object.Object) ([]byte, error) {
	data := o.Packed(object.Protobuf)
	if data == nil {
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
		if data, err = o.Encoded(object.Protobuf); err != nil {
			return nil, err
		}
	}
	raw, err := protoRaw(data)
	if err != nil {
		return nil, fmt.Errorf("encoded %s: %w", o.Kind().Kind, err)
	}
	metadata, err := protoField(raw, 1)
	if err != nil {
		return nil, fmt.Errorf("encoded %s: %w", o.Kind().Kind, err)
	}
	return append(protoHeader(1, len(metadata)), metadata...), nil
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
	return protoUnknown(kind, raw)
}

// partialList is a PartialObjectMetadataList in pieces.
func partialList(kind schema.GroupVersionKind, mediaType string, list metav1.ListMeta, items []*object.Object) ([][]byte, error) {
	each := kind.GroupVersion().WithKind("PartialObjectMetadata")
	if mediaType == object.Protobuf {
		return protoPieces(kind, list, items, partialProto)
	}
	return jsonPieces(kind, list, items, func(o *object.Object) ([]byte, error) { return partialJSON(o, each) })
}

// protoUnknown wraps the bytes of a message as Kubernetes does.
func protoUnknown(kind schema.GroupVersionKind, raw []byte) ([]byte, error) {
	apiVersion, name := kind.ToAPIVersionAndKind()
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: name}, Raw: raw}
	body, err := unknown.Marshal()
	if err != nil {
		return nil, err
	}
	return append([]byte(protoPrefix), body...), nil
}

var errNotAnObject = errors.New("not a JSON object")

// jsonMember finds from where to where the value of a member of the outermost
// object of valid JSON goes, zeros where there is none. Nothing behind the value is read.
func jsonMember(data []byte, name string) (begin, end int, err error) {
	i := skipSpace(data, 0)
	if i >= len(data) || data[i] != '{' {
		return 0, 0, errNotAnObject
	}
	for i++; ; i++ {
		key := skipSpace(data, i)
		if key >= len(data) {
			return 0, 0, errNotAnObject
		}
		if data[key] == '}' {
			return 0, 0, nil
		}
		if data[key] != '"' {
			return 0, 0, errNotAnObject
		}
		keyEnd := valueEnd(data, key)
		colon := skipSpace(data, max(keyEnd, 0))
		if keyEnd < 0 || colon >= len(data) || data[colon] != ':' {
			return 0, 0, errNotAnObject
		}
		begin = skipSpace(data, colon+1)
		if end = valueEnd(data, begin); end < 0 {
			return 0, 0, errNotAnObject
		}
		if string(data[key+1:keyEnd-1]) == name {
			return begin, end, nil
		}
		if i = skipSpace(data, end); i >= len(data) || data[i] != ',' && data[i] != '}' {
			return 0, 0, errNotAnObject
		}
		if data[i] == '}' {
			return 0, 0, nil
		}
	}
}

func skipSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\n' || data[i] == '\t' || data[i] == '\r') {
		i++
	}
	return i
}

// valueEnd is the index behind the value that begins at i, or -1.
func valueEnd(data []byte, i int) int {
	depth := 0
	for i < len(data) {
		switch data[i] {
		case '"':
			if i = stringEnd(data, i); i < 0 {
				return -1
			}
			if depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
			if depth < 0 { // what holds a number or a word ends with it
				return i
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	if depth == 0 {
		return i
	}
	return -1
}

// stringEnd is the index behind the string that begins at i, or -1.
func stringEnd(data []byte, i int) int {
	for i++; ; i++ {
		next := bytes.IndexByte(data[i:], '"')
		if next < 0 {
			return -1
		}
		i += next
		escapes := 0
		for data[i-1-escapes] == '\\' { // the opening quote ends it
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
}

// protoField is the first length-delimited field of that number; nil where there is none.
func protoField(message []byte, number uint64) ([]byte, error) {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return nil, errEnvelope
		}
		message = message[n:]
		switch tag & 7 {
		case 0:
			_, n := binary.Uvarint(message)
			if n <= 0 {
				return nil, errEnvelope
			}
			message = message[n:]
		case 2:
			size, n := binary.Uvarint(message)
			if n <= 0 || size > uint64(len(message)-n) {
				return nil, errEnvelope
			}
			if tag>>3 == number {
				return message[n : n+int(size)], nil
			}
			message = message[n+int(size):]
		default: // the API's messages have no fixed-size fields before their metadata
			return nil, errEnvelope
		}
	}
	return nil, nil
}
