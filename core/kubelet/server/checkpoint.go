// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
)

// checkpoints is an optional power of Node: its containers may be written to files.
type checkpoints interface {
	// Checkpoints is the folder of the files. It is empty where the node makes none, and an error says what it lacks.
	Checkpoints() (string, error)
}

// longestCheckpoint is the most that a request may ask the runtime to take, in seconds.
const longestCheckpoint = 3600

// checkpoint writes a running container's memory, files and processes to an archive on the node, and answers its path. The
// container goes on. Answers are upstream's, but that of a time that is no number, which is the client's mistake.
func (s *Server) checkpoint(w http.ResponseWriter, r *http.Request) {
	n, p := s.find(r)
	if p == nil {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	}
	name := r.PathValue("container")
	if !hasContainer(p, name) {
		http.Error(w, fmt.Sprintf("container %v does not exist", name), http.StatusNotFound)
		return
	}
	seconds, err := checkpointTime(r.URL.Query()["timeout"])
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	host, _ := n.(checkpoints)
	runtime, able := n.Runtime().(engine.Checkpointer)
	dir := ""
	if host != nil && able {
		if dir, err = host.Checkpoints(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	if dir == "" {
		http.Error(w, "this node makes no checkpoints: it is simulated, or node.containerCheckpoints is false in its configuration", http.StatusNotFound)
		return
	}
	select {
	case s.checkpointing <- struct{}{}:
		defer func() { <-s.checkpointing }()
	default:
		http.Error(w, "a checkpoint is being made, and one is made at a time: try again later", http.StatusTooManyRequests)
		return
	}
	archive := filepath.Join(dir, fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", p.Name, p.Namespace, name, time.Now().Format(time.RFC3339)))
	id, err := runningContainer(p, name)
	if err == nil {
		err = runtime.Checkpoint(r.Context(), id, archive, seconds)
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("checkpointing of %s/%s/%s failed (%v)", p.Namespace, p.Name, name, err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string][]string{"items": {archive}})
}

// checkpointTime is the last of the times that a request names, in seconds; 0: the runtime's own.
func checkpointTime(texts []string) (int64, error) {
	if len(texts) == 0 {
		return 0, nil
	}
	text := texts[len(texts)-1]
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds < 0 || seconds > longestCheckpoint {
		return 0, fmt.Errorf("timeout: expected seconds, from 0 to %d, found %q", longestCheckpoint, text)
	}
	return seconds, nil
}
