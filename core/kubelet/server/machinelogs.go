// SPDX-License-Identifier: Apache-2.0

package server

import (
	"io/fs"
	"net/http"
	"os"
	"syscall"
)

// machineLogs is an optional power of Node: a machine that keeps logs.
type machineLogs interface {
	// MachineLogs is the folder of the machine's logs, empty where there is none.
	MachineLogs() string
}

// machineLogs lists the folder of the machine's logs and sends its files, at /logs/.
func (s *Server) machineLogs(w http.ResponseWriter, r *http.Request) {
	n, _ := s.about(r).(machineLogs)
	if n == nil || n.MachineLogs() == "" {
		http.Error(w, "this node has no machine with logs", http.StatusNotFound)
		return
	}
	root, err := os.OpenRoot(n.MachineLogs())
	if err != nil {
		s.cfg.Logger.WarnContext(r.Context(), "the folder of the machine's logs cannot be read", "error", err)
		http.Error(w, "the folder of the machine's logs cannot be read", http.StatusInternalServerError)
		return
	}
	defer func() { _ = root.Close() }()
	http.StripPrefix("/logs", http.FileServerFS(plainFiles{root})).ServeHTTP(w, r)
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
