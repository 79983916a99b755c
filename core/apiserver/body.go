// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/apiserver/answer"
	"github.com/wasmplane/wasmplane/core/jsonscan"
	"github.com/wasmplane/wasmplane/core/object"
)

// maxBody is upstream's bound on a request body: three times etcd's on a value,
// for objects that shrink when they are stored.
const maxBody = 3 << 20

// maxDepth bounds how deep a JSON body nests. No API type nests a tenth
// as deep, and decoders recurse.
const maxDepth = 500

// maxProtobufDepth is the same for protobuf, which has messages around lists
// and map entries where JSON has none.
const maxProtobufDepth = 2 * maxDepth

// readBody reads the whole body, which is bounded.
func readBody(req *http.Request) ([]byte, error) {
	if req.ContentLength > maxBody {
		return nil, tooLargeBody()
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
	} else if data, err = io.ReadAll(io.LimitReader(req.Body, maxBody+1)); len(data) > maxBody {
		return nil, tooLargeBody()
	}
	if err != nil {
		return nil, unread(err)
	}
	return data, nil
}

// unread answers for a body that did not come whole.
func unread(err error) error {
	var tooMuch *http.MaxBytesError
	if errors.As(err, &tooMuch) {
		return tooLargeBody()
	}
	return apierrors.NewBadRequest(fmt.Sprintf("read the request's body: %v", err))
}

func tooLargeBody() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
}

// checkDepth refuses JSON that nests too deep. YAML and CBOR need no check of
// ours: their decoders bound depth, and what aliases may unfold to.
func checkDepth(data []byte, mediaType string) error {
	if mediaType == object.JSON {
		if jsonscan.Deeper(data, maxDepth) {
			return apierrors.NewBadRequest(fmt.Sprintf("the body nests deeper than %d levels", maxDepth))
		}
	}
	return nil
}

// recursive says whether the protobuf form of a resource can nest without end.
// Only schemas do; all other messages are as deep as their type.
func recursive(resource schema.GroupResource) bool {
	return resource.Group == apiextensionsv1.GroupName
}

// protobufDepth refuses protobuf that may nest too deep: its decoder has no bound,
// and what validates a schema of a hundred thousand levels overflows the stack,
// which ends the process. What is a message and what a text cannot be told without
// the type, so everything that reads as a message counts as one. No byte is looked
// at twice as a field's header, so the time is linear in the length.
func protobufDepth(data []byte) error {
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

// bodyType is the media type that a body is in; a missing header means JSON.
func bodyType(req *http.Request) (string, error) {
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
