// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/localsocket"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
)

// Answers fails where the API does not answer at the socket: every request goes through
// what this one goes through.
func (s Site) Answers(ctx context.Context) error {
	status, err := process.Alive(ctx, "https://kubernetes/livez", func(ctx context.Context, _, _ string) (net.Conn, error) {
		return localsocket.Dial(ctx, s.Options.Dir.Socket())
	})
	if err != nil {
		return fmt.Errorf("the API: %w", err)
	}
	if status >= http.StatusInternalServerError {
		return fmt.Errorf("the API: /livez answers %d %s", status, http.StatusText(status))
	}
	return nil // that strangers may not ask is an answer too
}
