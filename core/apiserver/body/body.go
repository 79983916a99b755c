// SPDX-License-Identifier: Apache-2.0

// Package body reads the bodies of requests, within bounds: of size, of depth, and of what
// all bodies together may take until their requests are answered.
package body

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/apiserver/answer"
	"github.com/wasmplane/wasmplane/core/jsonscan"
	"github.com/wasmplane/wasmplane/core/object"
)

// Max is upstream's bound on a request body: three times etcd's on a value,
// for objects that shrink when they are stored.
const Max = 3 << 20

// maxDepth bounds how deep a JSON body nests. No API type nests a tenth
// as deep, and decoders recurse.
const maxDepth = 500

// maxProtobufDepth is the same for protobuf, which has messages around lists
// and map entries where JSON has none.
const maxProtobufDepth = 2 * maxDepth

// Read reads the whole body of a request, which is bounded.
func Read(req *http.Request) ([]byte, error) {
	if err := CheckLength(req); err != nil {
		return nil, err
	}
	if req.Body == nil {
		return nil, nil
	}
	if f, ok := req.Body.(*fetched); ok && f.data != nil {
		return f.data, nil
	}
	var data []byte
	var err error
	if req.ContentLength > 0 {
		data = make([]byte, req.ContentLength)
		_, err = io.ReadFull(req.Body, data)
	} else if data, err = io.ReadAll(io.LimitReader(req.Body, Max+1)); len(data) > Max {
		return nil, tooLarge()
	}
	if err != nil {
		return nil, unread(err)
	}
	return data, nil
}

// CheckLength refuses a request that says that its body is too large.
func CheckLength(req *http.Request) error {
	if req.ContentLength > Max {
		return tooLarge()
	}
	return nil
}

// unread answers for a body that did not come whole.
func unread(err error) error {
	var tooMuch *http.MaxBytesError
	if errors.As(err, &tooMuch) {
		return tooLarge()
	}
	return apierrors.NewBadRequest(fmt.Sprintf("read the request's body: %v", err))
}

func tooLarge() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", Max))
}

// maxName bounds how long a name in JSON is. What is wrong below it is told with the name, field by field; no API type has names of a
// twentieth of this, nor maps with such keys.
const maxName = 16 << 10

// CheckDepth refuses JSON that nests too deep, or has too long names. YAML and CBOR need no check of
// ours: their decoders bound depth, and what aliases may unfold to.
func CheckDepth(data []byte, mediaType string) error {
	if mediaType == object.JSON {
		if jsonscan.Deeper(data, maxDepth) {
			return apierrors.NewBadRequest(fmt.Sprintf("the body nests deeper than %d levels", maxDepth))
		}
		if jsonscan.LongerName(data, maxName) {
			return apierrors.NewBadRequest(fmt.Sprintf("a name in the body is longer than %d bytes", maxName))
		}
	}
	return nil
}

// CheckProtobufDepth refuses protobuf that may nest too deep: its decoder has no bound,
// and what validates a schema of a hundred thousand levels overflows the stack,
// which ends the process. What is a message and what a text cannot be told without
// the type, so everything that reads as a message counts as one. No byte is looked
// at twice as a field's header, so the time is linear in the length.
func CheckProtobufDepth(data []byte) error {
	if !shallow(data, maxProtobufDepth) {
		return apierrors.NewBadRequest(fmt.Sprintf("the body nests deeper than %d messages", maxProtobufDepth))
	}
	return nil
}

// shallow reports whether data is no message, or one of at most levels levels.
func shallow(data []byte, levels int) bool {
	if levels == 0 {
		return false
	}
	for len(data) > 0 {
		_, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return true
		}
		data = data[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(1, kind, data); n < 0 {
				return true
			}
			data = data[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(data)
		if n < 0 {
			return true
		}
		if !shallow(value, levels-1) {
			return false
		}
		data = data[n:]
	}
	return true
}

// Type is the media type that a body is in; a missing header means JSON.
func Type(req *http.Request) (string, error) {
	header := req.Header.Get("Content-Type")
	if header == "" {
		return object.JSON, nil
	}
	mediaType, _, err := mime.ParseMediaType(header)
	if err == nil {
		switch mediaType {
		case object.JSON, object.YAML, object.Protobuf:
			return mediaType, nil
		}
	}
	return "", answer.UnsupportedMediaType(answer.MediaTypes())
}
