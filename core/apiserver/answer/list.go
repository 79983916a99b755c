// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"bytes"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/envelope"
	"github.com/wasmplane/wasmplane/core/object"
)

// jsonList writes a list around its items' own JSON. As upstream's lists do, those of built-in kinds leave out what kind their items
// are: clients with types then read the same item out of a list as out of a get. Lists of custom resources say it.
func jsonList(r *api.Resource, version string, list metav1.ListMeta, items []*object.Object) ([][]byte, error) {
	kind := schema.GroupVersionKind{Group: r.Group, Version: version, Kind: r.ListKind}
	var head []byte
	if r.Custom == nil {
		head = jsonHead(kind.GroupVersion().WithKind(r.Kind))
	}
	return jsonPieces(kind, list, items, head, func(o *object.Object) ([]byte, error) { return o.Encoded(object.JSON) })
}

// jsonHead is what the JSON of an object or a list begins with, as encoding/json writes its TypeMeta, up to the next member.
func jsonHead(kind schema.GroupVersionKind) []byte {
	apiVersion, name := kind.ToAPIVersionAndKind()
	return fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, name, apiVersion)
}

// jsonPieces writes a list around what encode makes of its items, without the head, which is empty or ends before a member.
func jsonPieces(kind schema.GroupVersionKind, list metav1.ListMeta, items []*object.Object, head []byte,
	encode func(*object.Object) ([]byte, error),
) ([][]byte, error) {
	listMeta, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	pieces, comma, brace := make([][]byte, 0, 3*len(items)+2), []byte{','}, []byte{'{'}
	pieces = append(pieces, fmt.Appendf(jsonHead(kind), `"metadata":%s,"items":[`, listMeta))
	for i, o := range items {
		data, err := encode(o)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			pieces = append(pieces, comma)
		}
		if len(head) > 0 && bytes.HasPrefix(data, head) {
			pieces, data = append(pieces, brace), data[len(head):]
		}
		pieces = append(pieces, bytes.TrimSuffix(data, []byte{'\n'}))
	}
	return append(pieces, []byte("]}\n")), nil
}

// protoList writes a list message around its items' own.
func protoList(r *api.Resource, version string, list metav1.ListMeta, items []*object.Object) ([][]byte, error) {
	kind := schema.GroupVersionKind{Group: r.Group, Version: version, Kind: r.ListKind}
	return protoPieces(kind, list, items, func(o *object.Object) ([]byte, error) {
		data, err := o.Encoded(object.Protobuf)
		if err != nil {
			return nil, err
		}
		raw, err := envelope.Raw(data)
		if err != nil {
			return nil, fmt.Errorf("encoded %s: %w", r.Kind, err)
		}
		return raw, nil
	})
}

// protoPieces writes a list message in its envelope.
func protoPieces(kind schema.GroupVersionKind, list metav1.ListMeta, items []*object.Object,
	encode func(*object.Object) ([]byte, error),
) ([][]byte, error) {
	listMeta, err := list.Marshal()
	if err != nil {
		return nil, err
	}
	body := make([][]byte, 0, 2*len(items)+3)
	body = append(body, nil, append(envelope.Header(metadataField, len(listMeta)), listMeta...))
	size := len(body[1])
	headers := make([]byte, 0, 6*len(items)) // of the items; it may move, what points into it stays
	for _, o := range items {
		raw, err := encode(o)
		if err != nil {
			return nil, err
		}
		begin := len(headers)
		headers = envelope.AppendHeader(headers, itemsField, len(raw))
		body = append(body, headers[begin:len(headers):len(headers)], raw)
		size += len(headers) - begin + len(raw)
	}
	head, tail, err := envelope.WrapAround(kind, size)
	if err != nil {
		return nil, err
	}
	body[0] = head
	return append(body, tail), nil
}
