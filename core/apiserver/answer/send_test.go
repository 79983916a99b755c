// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"bytes"
	"compress/gzip"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/object"
)

func newWriter(t *testing.T) *Writer {
	t.Helper()
	a, err := New(nil, slog.New(slog.DiscardHandler), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// A client gets gzip where it accepts it, and not where it says that it doesn't
// by giving it a quality of zero.
func TestOnlyThoseWhoAcceptGzipGetIt(t *testing.T) {
	a := newWriter(t)
	large := [][]byte{bytes.Repeat([]byte("a"), compressAbove/2), bytes.Repeat([]byte("b"), compressAbove)}
	for accept, compressed := range map[string]bool{
		"":                        false,
		"gzip":                    true,
		"deflate, gzip;q=0.5":     true,
		"gzip;q=0":                false,
		"gzip; q=0.0, identity":   false,
		"br, zstd":                false,
		"gzip, zstd":              true,
		"x-not-gzip":              false,
		"identity;q=1, gzip;q=0.": false,
	} {
		w := httptest.NewRecorder()
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		req.Header.Set("Accept-Encoding", accept)
		a.Bytes(w, req, object.JSON, http.StatusOK, large...)
		body := io.Reader(w.Body)
		if got := w.Header().Get("Content-Encoding") == "gzip"; got != compressed {
			t.Errorf("%q: compressed %v, want %v", accept, got, compressed)
			continue
		}
		if compressed {
			if w.Header().Get("Content-Length") != "" || !strings.Contains(w.Header().Get("Vary"), "Accept-Encoding") {
				t.Errorf("%q: headers %v", accept, w.Header())
			}
			z, err := gzip.NewReader(body)
			if err != nil {
				t.Fatalf("%q: %v", accept, err)
			}
			body = z
		} else if got := w.Header().Get("Content-Length"); got != strconv.Itoa(compressAbove/2+compressAbove) {
			t.Errorf("%q: content length %s", accept, got)
		}
		data, err := io.ReadAll(body)
		if err != nil || !bytes.Equal(data, bytes.Join(large, nil)) {
			t.Errorf("%q: %d bytes came, %v", accept, len(data), err)
		}
	}
}

func TestSmallAnswersAreNotCompressed(t *testing.T) {
	a := newWriter(t)
	w := httptest.NewRecorder()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	req.Header.Set("Accept-Encoding", "gzip")
	a.Bytes(w, req, object.JSON, http.StatusCreated, []byte("{}"))
	if w.Code != http.StatusCreated || w.Body.String() != "{}" || w.Header().Get("Content-Encoding") != "" ||
		w.Header().Get("Content-Length") != "2" {
		t.Errorf("%d %v %q", w.Code, w.Header(), w.Body)
	}
}

func TestAnAnswerToHeadHasNoBody(t *testing.T) {
	a := newWriter(t)
	for _, size := range []int{10, 2 * compressAbove} {
		w := httptest.NewRecorder()
		req := httptest.NewRequestWithContext(t.Context(), http.MethodHead, "/", nil)
		req.Header.Set("Accept-Encoding", "gzip")
		a.Bytes(w, req, object.JSON, http.StatusOK, make([]byte, size))
		if w.Code != http.StatusOK || w.Body.Len() != 0 || w.Header().Get("Content-Length") != strconv.Itoa(size) {
			t.Errorf("%d bytes: %d %v, %d came", size, w.Code, w.Header(), w.Body.Len())
		}
	}
}
