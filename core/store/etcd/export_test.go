// SPDX-License-Identifier: Apache-2.0

package etcd

import "context"

// Kill ends the member as kill -9 does: nothing is handed over.
func (s *Server) Kill() {
	s.peers.close()
	s.etcd.Server.HardStop()
}

// Pass has the transaction that changes nothing take the way of all writes.
func (s *Server) Pass(ctx context.Context) error { return s.store.pass(ctx) }
