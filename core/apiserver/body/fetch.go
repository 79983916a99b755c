// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bytes"
	"io"
	"net/http"
)

// fetched is a body that has come.
type fetched struct {
	io.Reader
	data []byte // nil where there is more than the bound of a body
}

// Close implements io.Closer; the server itself closes what was read from.
func (*fetched) Close() error { return nil }

// Need is how many bytes the body of a request may take.
func Need(req *http.Request) int64 {
	if req.ContentLength > 0 {
		return min(Max, req.ContentLength)
	}
	return Max
}

// Fetch reads the body of a request, so that Read does not have to wait for it. One
// that is too large is not read to its end: whoever reads it next says so, or passes
// it on to another server.
func Fetch(req *http.Request) error {
	data, err := readUpTo(req.Body, req.ContentLength)
	if err != nil {
		return err
	}
	f := &fetched{Reader: bytes.NewReader(data), data: data}
	if len(data) > Max {
		f.Reader, f.data = io.MultiReader(f.Reader, req.Body), nil
	}
	req.Body = f
	return nil
}

// readUpTo reads a body of a known or unknown length up to the bound and one byte more.
func readUpTo(body io.Reader, length int64) ([]byte, error) {
	var b bytes.Buffer
	if length > 0 {
		b.Grow(int(min(length, 64<<10)) + bytes.MinRead) // no room for what may never come
	}
	if _, err := b.ReadFrom(io.LimitReader(body, Max+1)); err != nil {
		return nil, unread(err)
	}
	return b.Bytes(), nil
}
