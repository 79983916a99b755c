// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"bufio"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"
)

// compressAbove is the size from which answers are compressed for clients that
// accept it. Below, compression costs more than the wire.
const compressAbove = 128 << 10

// newCompressor compresses what a handler answers where the client accepts gzip.
func newCompressor() (func(http.Handler) http.HandlerFunc, error) {
	return gzhttp.NewWrapper(
		gzhttp.MinSize(compressAbove),
		gzhttp.CompressionLevel(gzip.BestSpeed),
		gzhttp.EnableZstd(false),                                    // clients of the API know gzip
		gzhttp.ContentTypeFilter(func(string) bool { return true }), // nothing that we answer is compressed already
	)
}

// Bytes answers with pieces, one behind the other, in a media type.
func (a *Writer) Bytes(w http.ResponseWriter, req *http.Request, mediaType string, code int, pieces ...[]byte) {
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	h := w.Header()
	h.Set("Content-Type", mediaType)
	h.Set("Cache-Control", "no-cache, private")
	h.Set("Content-Length", strconv.Itoa(size))
	send := func(w http.ResponseWriter, req *http.Request) {
		w.WriteHeader(code)
		if req.Method != http.MethodHead {
			writeAll(w, pieces)
		}
	}
	if size < compressAbove || !strings.Contains(req.Header.Get("Accept-Encoding"), "gzip") {
		send(w, req)
		return
	}
	a.compress(http.HandlerFunc(send)).ServeHTTP(w, req)
}

// frameSize is as much as one frame of HTTP/2 carries in one record of TLS. What is
// written in larger parts is cut into frames of 16 KiB, and each of them, by the
// nine bytes that stand before it, into two records and two calls of the kernel.
const frameSize = 16<<10 - 9

// writeAll writes many small pieces in few calls. A client that has gone is no error.
func writeAll(w io.Writer, pieces [][]byte) {
	if len(pieces) == 1 {
		_ = writeFrames(w, pieces[0])
		return
	}
	b := bufio.NewWriterSize(w, frameSize)
	for _, p := range pieces {
		if _, err := b.Write(p); err != nil {
			return
		}
	}
	_ = b.Flush()
}

// writeFrames writes data a frame at a time.
func writeFrames(w io.Writer, data []byte) error {
	for len(data) > frameSize {
		if _, err := w.Write(data[:frameSize]); err != nil {
			return err
		}
		data = data[frameSize:]
	}
	_, err := w.Write(data)
	return err
}
