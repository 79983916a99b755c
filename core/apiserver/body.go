package apiserver

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/object"
)

// maxBody is upstream's bound on a request body: three times etcd's on a value,
// for objects that shrink when they are stored.
const maxBody = 3 << 20

// maxDepth bounds how deep a JSON body nests. No API type nests a tenth
// as deep, and decoders recurse.
const maxDepth = 500

// readBody reads the whole body, which is bounded.
func readBody(req *http.Request) ([]byte, error) {
	if req.ContentLength > maxBody {
		return nil, tooLargeBody()
	}
	if req.Body == nil {
		return nil, nil
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
		var tooMuch *http.MaxBytesError
		if errors.As(err, &tooMuch) {
			return nil, tooLargeBody()
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("read the request's body: %v", err))
	}
	return data, nil
}

func tooLargeBody() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
}

// checkDepth refuses JSON that nests too deep. YAML needs no check of ours: its
// decoder bounds depth and what aliases may unfold to.
func checkDepth(data []byte, mediaType string) error {
	if mediaType == object.JSON {
		return jsonDepth(data)
	}
	return nil
}

func jsonDepth(data []byte) error {
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted:
			if c == '\\' {
				i++
			} else if c == '"' {
				quoted = false
			}
		case c == '"':
			quoted = true
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return apierrors.NewBadRequest(fmt.Sprintf("the body nests deeper than %d levels", maxDepth))
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}
