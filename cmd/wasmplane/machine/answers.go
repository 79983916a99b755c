// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
)

// Answers fails where the node's server does not answer on this machine, whatever it
// answers: that a container runtime or an API server is away is no reason to start
// this process anew.
func (n *Node) Answers(ctx context.Context) error {
	port := n.port.Load()
	if port == 0 {
		return errors.New("the kubelet does not listen yet")
	}
	at := "https://" + net.JoinHostPort("localhost", strconv.Itoa(int(port))) + "/healthz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return fmt.Errorf("ask the kubelet: %w", err)
	}
	asking := &http.Transport{
		DisableKeepAlives: true, Proxy: nil,
		// Nothing is sent, and nothing is believed: a name that verifies is not needed for a sign of life.
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}, //nolint:gosec // see above
	}
	resp, err := asking.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("ask the kubelet: %w", err)
	}
	return resp.Body.Close()
}
