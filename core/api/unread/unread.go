// SPDX-License-Identifier: Apache-2.0

// Package unread knows of a stored ConfigMap or Secret, which are most of what a cluster
// stores, what the watch cache needs, without decoding it: most are never read.
//
// It guarantees that a value that it opens is one that decodes, to the same labels and
// fields; it answers false for everything that it does not know every byte of, and
// for what decoding would fill in defaults of. Then the general way has to judge.
package unread

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api/envelope"
)

// Value is a stored object that has not been decoded.
type Value struct {
	Labels map[string]string // nil where it has none
	Fields map[string]string // those that its kind may be selected by

	kind           *kind
	metadata, rest []byte
	// stamp is where in metadata its resourceVersion is, or is to be.
	stamp [2]int
}

// Fields of an object, and of its metadata.
const (
	metadataField protowire.Number = 1

	nameField            protowire.Number = 1
	namespaceField       protowire.Number = 3
	resourceVersionField protowire.Number = 6
	labelsField          protowire.Number = 11

	secretTypeField protowire.Number = 3
)

// shape is what the fields of a message are, by their numbers.
type shape []field

type field struct {
	known   bool
	wire    protowire.Type
	message shape // nil: text, bytes or a number
}

func of(s shape) field { return field{known: true, wire: protowire.BytesType, message: s} }

var (
	text   = field{known: true, wire: protowire.BytesType}
	number = field{known: true, wire: protowire.VarintType}
	pairs  = of(shape{1: text, 2: text})
	moment = of(shape{1: number, 2: number})

	// Of k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto.
	metadata = shape{
		nameField: text, 2: text, namespaceField: text, 4: text, 5: text, resourceVersionField: text, 7: number, 8: moment, 9: moment, 10: number,
		labelsField: pairs, 12: pairs,
		13: of(shape{1: text, 3: text, 4: text, 5: text, 6: number, 7: number}),
		14: text,
		17: of(shape{1: text, 2: text, 3: text, 4: moment, 6: text, 7: of(shape{1: text}), 8: text}),
	}
	// Of k8s.io/api/core/v1/generated.proto.
	kinds = []*kind{
		newKind("ConfigMap", shape{metadataField: of(metadata), 2: pairs, 3: pairs, 4: number}),
		newKind("Secret", shape{metadataField: of(metadata), 2: pairs, secretTypeField: text, 4: pairs, 5: number}),
	}
)

// kind is one of v1.
type kind struct {
	schema.GroupVersionKind
	shape      shape
	head, tail []byte // of an envelope, up to the header of the raw message
	secret     bool
}

func newKind(name string, s shape) *kind {
	k := &kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: name}, shape: s, secret: name == "Secret"}
	empty := envelope.Header(rawField, 0)
	head, tail, err := envelope.WrapAround(k.GroupVersionKind, 0)
	if err != nil || !bytes.HasSuffix(head, empty) {
		return k // with which nothing opens
	}
	k.head, k.tail = head[:len(head)-len(empty)], tail
	return k
}

// rawField of an envelope is the object's message.
const rawField protowire.Number = 2

// each calls f with the fields of a message in their order and where they begin and end, and answers whether all of it is of the shape.
func (s shape) each(message []byte, f func(n protowire.Number, from, to int, value []byte)) bool {
	for at := 0; at < len(message); {
		from := at
		n, wire, size := protowire.ConsumeTag(message[at:])
		if size < 0 || int(n) >= len(s) || !s[n].known || wire != s[n].wire {
			return false
		}
		at += size
		var value []byte
		if wire == protowire.VarintType {
			_, size = protowire.ConsumeVarint(message[at:])
		} else {
			value, size = protowire.ConsumeBytes(message[at:])
		}
		if size < 0 || s[n].message != nil && !s[n].message.each(value, nil) {
			return false
		}
		if at += size; f != nil {
			f(n, from, at, value)
		}
	}
	return true
}

// Open reads what is needed of a value that is to be of a kind.
func Open(want schema.GroupVersionKind, value []byte) (v Value, ok bool) {
	for _, k := range kinds {
		if k.GroupVersionKind == want && k.head != nil {
			v.kind = k
		}
	}
	if v.kind == nil {
		return v, false
	}
	m, ok := envelope.Open(value)
	if !ok || string(m.APIVersion) != want.Version || string(m.Kind) != want.Kind {
		return v, false
	}
	v.Fields = make(map[string]string, 3)
	metadatas := 0
	if !v.kind.shape.each(m.Raw, func(n protowire.Number, from, to int, value []byte) {
		switch {
		case n == metadataField && from == 0:
			metadatas++
			v.metadata, v.rest = value, m.Raw[to:]
		case n == metadataField:
			metadatas++
		case n == secretTypeField && v.kind.secret:
			v.Fields["type"] = string(value)
		}
	}) || metadatas != 1 || v.metadata == nil || v.kind.secret && v.Fields["type"] == "" { // a Secret without a type has a default
		return v, false
	}
	return v, v.look()
}

// look reads the metadata, which is of its shape. It answers false where there are two versions.
func (v *Value) look() bool {
	name, namespace, stamps := "", "", 0
	v.stamp = [2]int{len(v.metadata), len(v.metadata)}
	metadata.each(v.metadata, func(n protowire.Number, from, to int, value []byte) {
		switch n { //nolint:exhaustive // the others are of no interest
		case nameField:
			name = string(value)
		case namespaceField:
			namespace = string(value)
		case resourceVersionField:
			stamps++
			v.stamp = [2]int{from, to}
		case labelsField:
			var pair [2]string
			pairs.message.each(value, func(n protowire.Number, _, _ int, value []byte) { pair[n-1] = string(value) })
			if v.Labels == nil {
				v.Labels = map[string]string{}
			}
			v.Labels[pair[0]] = pair[1]
		}
	})
	v.Fields["metadata.name"], v.Fields["metadata.namespace"] = name, namespace
	return stamps <= 1
}

// At is the value with its resourceVersion, as encoding the object would make it. It shares no memory with what was opened.
func (v Value) At(resourceVersion string) []byte {
	size := len(v.metadata) - (v.stamp[1] - v.stamp[0]) + protowire.SizeTag(resourceVersionField) + protowire.SizeBytes(len(resourceVersion))
	raw := protowire.SizeTag(metadataField) + protowire.SizeBytes(size) + len(v.rest)
	out := make([]byte, 0, len(v.kind.head)+protowire.SizeTag(rawField)+protowire.SizeBytes(raw)+len(v.kind.tail))
	out = envelope.AppendHeader(append(out, v.kind.head...), rawField, raw)
	out = append(envelope.AppendHeader(out, metadataField, size), v.metadata[:v.stamp[0]]...)
	out = append(envelope.AppendHeader(out, resourceVersionField, len(resourceVersion)), resourceVersion...)
	out = append(append(out, v.metadata[v.stamp[1]:]...), v.rest...)
	return append(out, v.kind.tail...)
}
