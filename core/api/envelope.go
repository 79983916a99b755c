package api

import (
	"encoding/binary"
)

// envelope is what Kubernetes wraps protobuf messages in: runtime.Unknown, parted
// without copying.
type envelope struct {
	apiVersion, kind []byte
	raw              []byte // the message
}

// openEnvelope parts an envelope with its prefix. It knows the shape that
// Kubernetes writes, each field once; ok = false is for anything else, which
// runtime.Unknown may still be able to read.
func openEnvelope(data []byte) (e envelope, ok bool) {
	if len(data) < len(protobufPrefix) || string(data[:len(protobufPrefix)]) != protobufPrefix {
		return e, false
	}
	fields, ok := partMessage(data[len(protobufPrefix):])
	if !ok {
		return e, false
	}
	kind, ok := partMessage(fields[0])
	if !ok || kind[2] != nil || kind[3] != nil {
		return e, false
	}
	return envelope{apiVersion: kind[0], kind: kind[1], raw: fields[1]}, true
}

// partMessage finds the length-delimited fields 1 to 4 of a message that has no others.
func partMessage(data []byte) (fields [4][]byte, ok bool) {
	for len(data) > 0 {
		number := data[0] >> 3
		if data[0]&7 != 2 || number < 1 || number > 4 || fields[number-1] != nil {
			return fields, false
		}
		size, n := binary.Uvarint(data[1:])
		if n <= 0 || size > uint64(len(data)-1-n) {
			return fields, false
		}
		begin := 1 + n
		fields[number-1] = data[begin : begin+int(size) : begin+int(size)]
		data = data[begin+int(size):]
	}
	return fields, true
}
