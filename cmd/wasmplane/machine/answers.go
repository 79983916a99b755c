// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
)

// Answers fails where the node's server does not answer on this machine, whatever it
// answers: that a container runtime or an API server is away is no reason to start
// this process anew.
func (n *Node) Answers(ctx context.Context) error {
	port := n.port.Load()
	if port == 0 {
		return errors.New("the kubelet does not listen yet")
	}
	if _, err := process.Alive(ctx, "https://"+net.JoinHostPort("localhost", strconv.Itoa(int(port)))+"/healthz", nil); err != nil {
		return fmt.Errorf("the kubelet: %w", err)
	}
	return nil
}
