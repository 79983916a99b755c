// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"net/http"

	"github.com/wasmplane/wasmplane/core/kubelet/reach"
)

// machine is an optional power of Node: to be a machine of its own, with a network.
type machine interface {
	// Real is false for a simulated one.
	Real() bool
}

// reach answers which addresses the node's machine reaches.
func (s *Server) reach(w http.ResponseWriter, r *http.Request) {
	if n, ok := s.about(r).(machine); !ok || !n.Real() {
		http.Error(w, "this node has no machine of its own", http.StatusNotFound)
		return
	}
	const largest = 64 << 10 // bytes
	var targets []reach.Target
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, largest)).Decode(&targets)
	if err == nil {
		err = reach.Validate(targets)
	}
	if err != nil {
		http.Error(w, "the addresses to try: "+err.Error(), http.StatusBadRequest)
		return
	}
	reply(w, reach.Try(r.Context(), targets))
}
