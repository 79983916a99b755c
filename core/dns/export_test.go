// SPDX-License-Identifier: Apache-2.0

package dns

// Listening is closed once the addresses are served; other names than the cluster's
// are answered from then on.
func (s *Server) Listening() <-chan struct{} { return s.up }
