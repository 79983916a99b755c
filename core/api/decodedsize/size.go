// SPDX-License-Identifier: Apache-2.0

package decodedsize

import (
	"bytes"
	"context"
	"reflect"

	"github.com/wasmplane/wasmplane/core/api/envelope"
	"github.com/wasmplane/wasmplane/core/jsonscan"
	"github.com/wasmplane/wasmplane/core/object"
)

// What values of JSON take as a tree of maps, lists and texts.
const (
	treeMap    = 48  // a map that has nothing
	treeTable  = 288 // what a map has from its first member on
	treeMember = 80  // a member with its name and the value that it points to, as tables grow
	treeEntry  = 40  // an entry of a list with the value that it points to, as lists grow
	yamlNode   = 200 // a node of YAML before it is a value
	yamlText   = 5   // times the text of YAML, which is read, made JSON and read again
)

// Size is about how many bytes data will take in memory, texts included, once it is decoded into an object of a type. Protobuf is in its
// envelope. It is at most little more than Max, above which objects are not decoded.
func Size(t reflect.Type, data []byte, mediaType string) int64 {
	text, s := int64(len(data)), Of(t)
	switch mediaType {
	case object.JSON:
		if text/shortest*s.largest <= text {
			return 2 * text
		}
		r := &textOf{data: data}
		r.value(s, 0)
		return text + min(r.size, Max)
	case object.Protobuf:
		c := &count{}
		c.message(&Shape{fields: map[uint64]*Shape{2: s}}, bytes.TrimPrefix(data, []byte(envelope.Prefix)), 0)
		return text + min(c.size, Max)
	case object.YAML:
		values, object := int64(separators(data)), int64(Max)
		if !aliased(data) {
			object = min(values*max(s.largest, treeEntry), Max)
		}
		return yamlText*text + values*yamlNode + object
	}
	return TreeSize(data, mediaType)
}

// TreeSize is Size of data that become a tree of JSON's values: custom resources, and most patches.
func TreeSize(data []byte, mediaType string) int64 {
	text := int64(len(data))
	switch mediaType {
	case object.JSON:
		return text + tree(data)
	case object.YAML:
		n := yamlText*text + int64(separators(data))*(yamlNode+treeMember)
		if aliased(data) {
			n += Max
		}
		return n
	}
	return text + treeOfCBOR(data)
}

// tree is what the values of a JSON text take. It does not recurse, as it is asked before anybody looked at the depth.
func tree(data []byte) int64 {
	n, opened := int64(treeEntry), false
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = jsonscan.Closing(data, i)
		case '{':
			n, opened = n+treeMap, true
		case '}':
			opened = false
		case '[', ',':
			n += treeEntry
		case ':':
			if n += treeMember; opened {
				n, opened = n+treeTable, false
			}
		}
	}
	return n
}

// treeOfCBOR is tree of CBOR (RFC 8949, section 3), as the watch cache packs custom resources: each value has a head, which says how
// long it is.
func treeOfCBOR(data []byte) (n int64) {
	const bytesType, textType, mapType = 2, 3, 5
	for len(data) > 0 {
		major, argument, head := data[0]>>5, uint64(data[0]&31), 1
		if argument >= 24 && argument < 28 { // it stands in the next 1, 2, 4 or 8 bytes
			head = 1 + 1<<(argument-24)
			if argument = 0; len(data) < head {
				return n
			}
			for _, b := range data[1:head] {
				argument = argument<<8 | uint64(b)
			}
		}
		data = data[head:]
		n += treeEntry
		switch major {
		case bytesType, textType:
			data = data[min(argument, uint64(len(data))):]
		case mapType:
			n += treeMap + treeTable
		}
	}
	return n
}

// aliased says whether YAML may have aliases, which stand for any number of values.
func aliased(data []byte) bool {
	return bytes.IndexByte(data, '&') >= 0 && bytes.IndexByte(data, '*') >= 0
}

// Part says what for a request takes memory: for each, the most that it needs at one time counts.
type Part int

// The parts of what a request takes.
const (
	Sent    Part = iota // the body as it was sent
	Decoded             // what it is decoded to
	Current             // the object that it reads or changes
	Result              // what a patch makes of that
	While               // what is taken beside that while one of them is decoded, and let go of behind it
	Parts               // their number
)

// Account says whether a request may take memory.
type Account interface {
	// Need refuses n bytes for a part, or counts them until the request ends.
	Need(p Part, n int64) error
}

type accountKey struct{}

// With is a context of a request that has an account.
func With(ctx context.Context, a Account) context.Context {
	return context.WithValue(ctx, accountKey{}, a)
}

// Need is asked before something is decoded. Of a context without an account it refuses nothing: that is the server's own work.
func Need(ctx context.Context, p Part, n int64) error {
	a, ok := ctx.Value(accountKey{}).(Account)
	if !ok {
		return nil
	}
	return a.Need(p, n)
}

// whileDecoded is how many times what something takes is taken beside it while it is decoded: lists grow by being copied, trees are
// compared, and what was let go of is there until it is collected. Measured for JSON and protobuf it is 0.7 to 2.3.
const whileDecoded = 2

// NeedDecoded is Need of what is decoded, and of what that takes for a moment. Steps of a request come one after the other, so that the
// largest counts. The sizes of YAML have it in them.
func NeedDecoded(ctx context.Context, p Part, n int64, mediaType string) error {
	if err := Need(ctx, p, n); err != nil || mediaType == object.YAML {
		return err
	}
	return Need(ctx, While, whileDecoded*n)
}

// Sizing is an optional power of a codec: what data will take once it is decoded. Objects of others are trees.
type Sizing interface {
	Size(data []byte, mediaType string) int64
}

// SizeBy is what data will take once a codec has decoded them.
func SizeBy(c object.Codec, data []byte, mediaType string) int64 {
	if s, ok := c.(Sizing); ok {
		return s.Size(data, mediaType)
	}
	return TreeSize(data, mediaType)
}

// OfObject is what an object of the store's takes when it is decoded; 0 = it is not packed, and so decoded already.
func OfObject(o *object.Object) int64 {
	for _, mediaType := range []string{object.Protobuf, object.JSON, object.CBOR} {
		if data := o.Packed(mediaType); data != nil {
			return SizeBy(o.Codec(), data, mediaType)
		}
	}
	return 0
}
