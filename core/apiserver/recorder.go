// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bufio"
	"net"
	"net/http"
	"strings"
	"sync"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// recorder remembers what was answered, for metrics, audit and trace.
type recorder struct {
	http.ResponseWriter
	code     int
	size     int
	hijacked bool
	guard    *stall // nil = an answer may take as long as it takes
}

// status is the code that was answered. Nothing written means 200, and a
// connection that was taken over was switched to another protocol.
func (r *recorder) status() int {
	switch {
	case r.code != 0:
		return r.code
	case r.hijacked:
		return http.StatusSwitchingProtocols
	}
	return http.StatusOK
}

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(code int) {
	if r.code == 0 {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(p []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	if g := r.guard; g == nil || g.relief == nil && r.size+len(p) <= smallAnswer {
		n, err := r.ResponseWriter.Write(p)
		r.size += n
		return n, err
	}
	written := 0
	for { // in parts: whoever takes one in time reads, however long all of it takes
		part := p[written:min(len(p), written+stallPart)]
		var n int
		var err error
		r.guard.during(func() { n, err = r.ResponseWriter.Write(part) })
		written, r.size = written+n, r.size+n
		if err != nil || written == len(p) {
			return written, err
		}
	}
}

// Flush implements http.Flusher.
func (r *recorder) Flush() {
	f, ok := r.ResponseWriter.(http.Flusher)
	switch {
	case !ok:
	case r.guard != nil:
		r.guard.during(f.Flush)
	default:
		f.Flush()
	}
}

// Hijack implements http.Hijacker.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(r.ResponseWriter).Hijack()
	r.hijacked = err == nil
	return conn, rw, err
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// maxWarnings bounds the Warning headers of one answer, in bytes.
const maxWarnings = 4 << 10

// warnings puts warnings into the answer's header, each once.
type warnings struct {
	mu     sync.Mutex
	header http.Header
	seen   map[string]bool
	size   int
}

// AddWarning implements warning.Recorder.
func (w *warnings) AddWarning(agent, text string) {
	if text == "" {
		return
	}
	if agent == "" {
		agent = "-"
	}
	text = strings.ToValidUTF8(text, "?")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[text] {
		return
	}
	header, err := utilnet.NewWarningHeader(299, agent, text)
	if err != nil || w.size+len(header) > maxWarnings {
		return
	}
	if w.seen == nil {
		w.seen = map[string]bool{}
	}
	w.seen[text] = true
	w.size += len(header)
	w.header.Add("Warning", header)
}
