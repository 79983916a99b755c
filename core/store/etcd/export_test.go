// SPDX-License-Identifier: Apache-2.0

package etcd

// Kill ends the member as kill -9 does: nothing is handed over.
func (s *Server) Kill() {
	s.peers.close()
	s.etcd.Server.HardStop()
}
