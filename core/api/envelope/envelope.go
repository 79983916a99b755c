// SPDX-License-Identifier: Apache-2.0

// Package envelope knows how Kubernetes wraps protobuf: a prefix of four bytes and
// a runtime.Unknown message that names the kind and holds the raw bytes of the
// object's own message.
//
// It parts envelopes and messages without copying: what it returns are parts of
// what it was given. It answers anything that is not well formed with an error or
// with false, and never reads behind the end. It knows no kind of the API.
package envelope

import (
	"bytes"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Prefix begins everything of Kubernetes in protobuf, stored or sent.
const Prefix = "k8s\x00"

// The fields of runtime.Unknown, and of the type that is its first.
const (
	typeField            protowire.Number = 1
	rawField             protowire.Number = 2
	contentEncodingField protowire.Number = 3
	contentTypeField     protowire.Number = 4

	apiVersionField protowire.Number = 1
	kindField       protowire.Number = 2
)

var errMalformed = errors.New("not in the protobuf envelope of Kubernetes")

// Message is what an envelope holds.
type Message struct {
	APIVersion, Kind []byte
	Raw              []byte
}

// Open parts an envelope of the shape that Kubernetes writes, each field once. ok
// is false for anything else, which runtime.Unknown may still be able to read.
func Open(data []byte) (m Message, ok bool) {
	data, found := bytes.CutPrefix(data, []byte(Prefix))
	if !found {
		return m, false
	}
	fields, ok := part(data)
	if !ok {
		return m, false
	}
	kind, ok := part(fields[typeField-1])
	if !ok || kind[2] != nil || kind[3] != nil {
		return m, false
	}
	return Message{APIVersion: kind[apiVersionField-1], Kind: kind[kindField-1], Raw: fields[rawField-1]}, true
}

// part finds the length-delimited fields 1 to 4 of a message that has no others.
func part(data []byte) (fields [4][]byte, ok bool) {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 || kind != protowire.BytesType || number > 4 || fields[number-1] != nil {
			return fields, false
		}
		value, size := protowire.ConsumeBytes(data[n:])
		if size < 0 {
			return fields, false
		}
		fields[number-1] = value[:len(value):len(value)]
		data = data[n+size:]
	}
	return fields, true
}

// Raw is the message inside an envelope; nil where it is empty.
func Raw(data []byte) ([]byte, error) {
	data, found := bytes.CutPrefix(data, []byte(Prefix))
	if !found {
		return nil, errMalformed
	}
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 || kind != protowire.BytesType {
			return nil, errMalformed
		}
		value, size := protowire.ConsumeBytes(data[n:])
		if size < 0 {
			return nil, errMalformed
		}
		if number == rawField {
			return value, nil
		}
		data = data[n+size:]
	}
	return nil, nil // an empty message is left out
}

// Field is the first length-delimited field of that number; nil where a message
// has none. Messages of the API have no fixed-size fields before their metadata,
// so one with such a field is refused.
func Field(message []byte, field protowire.Number) ([]byte, error) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, errMalformed
		}
		message = message[n:]
		switch kind {
		case protowire.VarintType:
			_, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			var value []byte
			if value, n = protowire.ConsumeBytes(message); n >= 0 && number == field {
				return value, nil
			}
		default:
			return nil, errMalformed
		}
		if n < 0 {
			return nil, errMalformed
		}
		message = message[n:]
	}
	return nil, nil
}

// Wrap puts the bytes of a message of a kind into an envelope.
func Wrap(kind schema.GroupVersionKind, raw []byte) ([]byte, error) {
	apiVersion, name := kind.ToAPIVersionAndKind()
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: name}, Raw: raw}
	body, err := unknown.Marshal()
	if err != nil {
		return nil, err
	}
	return append([]byte(Prefix), body...), nil
}

// WrapAround is the two ends of an envelope around a raw message of size bytes, for
// messages that are written in pieces.
func WrapAround(kind schema.GroupVersionKind, size int) (head, tail []byte, err error) {
	apiVersion, name := kind.ToAPIVersionAndKind()
	typeMeta, err := (&runtime.TypeMeta{APIVersion: apiVersion, Kind: name}).Marshal()
	if err != nil {
		return nil, nil, err
	}
	head = append([]byte(Prefix), Header(typeField, len(typeMeta))...)
	head = append(head, typeMeta...)
	head = AppendHeader(head, rawField, size)
	// Empty contentEncoding and contentType, as upstream writes them.
	return head, AppendHeader(Header(contentEncodingField, 0), contentTypeField, 0), nil
}

// headerRoom holds the longest header of a field with a small number.
const headerRoom = 12

// Header begins a length-delimited field of size bytes.
func Header(field protowire.Number, size int) []byte {
	return AppendHeader(make([]byte, 0, headerRoom), field, size)
}

// AppendHeader is Header, appended to b.
func AppendHeader(b []byte, field protowire.Number, size int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(size))
}
