// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"go.etcd.io/etcd/client/pkg/v3/types"
)

// Kill ends the member as kill -9 does: nothing is handed over.
func (s *Server) Kill() {
	s.peers.close()
	s.etcd.Server.HardStop()
}

// Cut has the member hear nothing of the others, and they nothing of it, until mend.
func (s *Server) Cut() (mend func()) {
	var others []types.ID
	for _, m := range s.etcd.Server.Cluster().Members() {
		if m.ID != s.etcd.Server.MemberID() {
			others = append(others, m.ID)
			s.etcd.Server.CutPeer(m.ID)
		}
	}
	return func() {
		for _, id := range others {
			s.etcd.Server.MendPeer(id)
		}
	}
}

// HasLeader tells whether the member has a leader, itself or another one.
func (s *Server) HasLeader() bool { return s.etcd.Server.Lead() != 0 }
