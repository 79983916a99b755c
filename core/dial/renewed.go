// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"net/http"
	"sync"
)

// Renewed is an http.Transport that is made anew when what it is made of changes: the
// certificate that it shows, or the authorities that it trusts. A connection is known by the
// certificate that it began with, and both sides may refuse that one later. So no request is sent on a
// connection of an earlier transport: those that are idle are closed, and the others at
// the end of their request.
type Renewed[K comparable] struct {
	key   func() K
	build func(K) *http.Transport

	mu  sync.Mutex
	of  K
	now *http.Transport
}

// NewRenewed makes a transport by build whenever key returns another value. build must be
// safe to call under a lock, and key is called for each request.
func NewRenewed[K comparable](key func() K, build func(K) *http.Transport) *Renewed[K] {
	k := key()
	return &Renewed[K]{key: key, build: build, of: k, now: build(k)}
}

// Transport is the one to use for the next request. Who dials by himself, as for an
// upgrade of the protocol, finds the TLS configuration in it.
func (r *Renewed[K]) Transport() *http.Transport {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.key(); k != r.of {
		before := r.now
		r.of, r.now = k, r.build(k)
		before.CloseIdleConnections() // and those that are in use, once they would be idle
	}
	return r.now
}

// RoundTrip implements http.RoundTripper.
func (r *Renewed[K]) RoundTrip(req *http.Request) (*http.Response, error) {
	return r.Transport().RoundTrip(req)
}

// WrappedRoundTripper implements k8s.io/apimachinery/pkg/util/net.RoundTripperWrapper, by
// which upgrades find the TLS configuration.
func (r *Renewed[K]) WrappedRoundTripper() http.RoundTripper { return r.Transport() }

// CloseIdleConnections closes the connections that no request uses.
func (r *Renewed[K]) CloseIdleConnections() { r.Transport().CloseIdleConnections() }
