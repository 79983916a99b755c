// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"context"
	"errors"
	"net"
	"syscall"
)

// Connect makes a connection, as net.Dialer.DialContext.
type Connect = func(ctx context.Context, network, address string) (net.Conn, error)

// ToTheEnd makes connections that are heard to the end. Whoever passes a stream on in both directions ends with the
// first of them that fails. A peer that has said its last words and gone refuses what is still sent to it (a ping, a
// keystroke), and the words that were received and not yet passed on would be lost: the exit code of a command, say.
// So what nobody takes any more is dropped without an error, and reading says when the connection is at its end, which
// it soon does.
func ToTheEnd(connect Connect) Connect {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := connect(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return heard{conn}, nil
	}
}

type heard struct{ net.Conn }

func (h heard) Write(p []byte) (int, error) {
	n, err := h.Conn.Write(p)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return len(p), nil
	}
	return n, err
}
