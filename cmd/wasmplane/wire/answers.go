// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/localsocket"
)

// answers fails where the API does not answer at the socket: every request goes through
// what this one goes through.
func (s site) answers(ctx context.Context) error {
	asking := &http.Transport{
		DisableKeepAlives: true,
		// The socket is this process's own, and nothing is sent: there is nobody to verify.
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}, //nolint:gosec // see above
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return localsocket.Dial(ctx, s.o.Dir.Socket())
		},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://kubernetes/livez", nil)
	if err != nil {
		return fmt.Errorf("ask the API: %w", err)
	}
	resp, err := asking.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("ask the API: %w", err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode >= http.StatusInternalServerError {
		return errors.Join(err, fmt.Errorf("/livez answers %s", resp.Status))
	}
	return nil // that strangers may not ask is an answer too
}
