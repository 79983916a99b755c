// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
)

// Alive asks a server of this machine for a sign of life: url, through dial, or the
// usual way where that is nil. It returns the status of whatever the server answers.
func Alive(ctx context.Context, url string, dial func(ctx context.Context, network, address string) (net.Conn, error)) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, fmt.Errorf("ask for a sign of life: %w", err)
	}
	transport := &http.Transport{
		DisableKeepAlives: true, DialContext: dial,
		// Nothing is sent, and nothing is believed: a name that verifies is not needed for a sign of life.
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}, //nolint:gosec // see above
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, fmt.Errorf("ask for a sign of life: %w", err)
	}
	return resp.StatusCode, resp.Body.Close()
}
