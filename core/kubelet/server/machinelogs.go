// SPDX-License-Identifier: Apache-2.0

package server

import (
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"syscall"

	"github.com/wasmplane/wasmplane/core/kubelet/logquery"
)

// machineLogs is an optional power of Node: a machine that keeps logs.
type machineLogs interface {
	// MachineLogs is the folder of the machine's logs, empty where there is none.
	MachineLogs() string
	// LogQueries says whether services' logs may be asked for by queries.
	LogQueries() bool
}

// mostQueries of logs are answered at one time: each is a process of the machine's.
const mostQueries = 4

// machineLogs lists the folder of the machine's logs and sends its files, at /logs/, and
// answers queries where the node has them switched on.
func (s *Server) machineLogs(w http.ResponseWriter, r *http.Request) {
	n, _ := s.about(r).(machineLogs)
	if n == nil || n.MachineLogs() == "" {
		http.Error(w, "this node serves no logs of a machine: it is simulated, or node.enableSystemLogHandler is false in its configuration", http.StatusNotFound)
		return
	}
	root, err := os.OpenRoot(n.MachineLogs())
	if err != nil {
		s.cfg.Logger.WarnContext(r.Context(), "the folder of the machine's logs cannot be read", "error", err)
		http.Error(w, "the folder of the machine's logs cannot be read", http.StatusInternalServerError)
		return
	}
	defer func() { _ = root.Close() }()
	files := plainFiles{root}
	if n.LogQueries() && !s.queried(w, r, files) {
		return
	}
	http.StripPrefix("/logs", http.FileServerFS(files)).ServeHTTP(w, r)
}

// queried answers a query of logs. It is true where the request, as it is left, asks for a file.
func (s *Server) queried(w http.ResponseWriter, r *http.Request, files fs.FS) bool {
	q, err := logquery.Parse(r.URL.Query())
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	case q == nil:
		return true
	case r.PathValue("path") != "":
		http.Error(w, "path not allowed in query mode", http.StatusNotAcceptable)
		return false
	}
	if err := q.Validate(); err != nil {
		http.Error(w, err.Error(), http.StatusNotAcceptable)
		return false
	}
	if len(q.Files) > 0 {
		return s.queriedFile(w, r, files, q.File())
	}
	select {
	case s.queries <- struct{}{}:
		defer func() { <-s.queries }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, fmt.Sprintf("%d queries of this node's logs are being answered, and no more are at one time; try again in a second", mostQueries), http.StatusTooManyRequests)
		return false
	}
	out, end := compressed(w, r)
	defer end()
	logquery.Logs{Files: files}.Copy(r.Context(), out, q)
	return false
}

// queriedFile makes of a query for a file the request for it by its path.
func (s *Server) queriedFile(w http.ResponseWriter, r *http.Request, files fs.FS, name string) bool {
	f, err := files.Open(name)
	if err != nil {
		http.Error(w, "query: no such file below the folder of this machine's logs", http.StatusNotAcceptable)
		return false
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		name = strings.TrimPrefix(name+"/", "./") // or the answer would be a redirection to that
	}
	r.URL.Path, r.URL.RawPath, r.URL.RawQuery = "/logs/"+name, "", ""
	return true
}

// compressed is where a query's answer goes, as upstream: by gzip for who accepts that alone.
func compressed(w http.ResponseWriter, r *http.Request) (out io.Writer, end func()) {
	w.Header().Set("Content-Type", "text/plain;charset=UTF-8")
	if r.Header.Get("Accept-Encoding") != "gzip" {
		return w, func() {}
	}
	w.Header().Set("Content-Encoding", "gzip")
	z := gzip.NewWriter(w)
	return z, func() { _ = z.Close() } // who went away reads no end
}

// plainFiles are the files and folders below root. Pods that write logs into the
// folder can make links and pipes there: a link that leads out of the folder is not
// followed, and what is neither a file nor a folder is not there.
type plainFiles struct{ root *os.Root }

// Open opens a file without waiting, as it might be a pipe.
func (p plainFiles) Open(name string) (fs.File, error) {
	f, err := p.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
