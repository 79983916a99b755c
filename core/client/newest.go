// SPDX-License-Identifier: Apache-2.0

package client

import (
	"net/http"

	"k8s.io/client-go/rest"
)

// Newest is a copy of a configuration whose clients ask for the newest state where client-go asks for any (resourceVersion=0),
// which a server that lags behind the store answers with the past. An informer asks so where its first watch failed: a
// controller that has just begun to lead would make the pods once more that the leader before it has made, and a kubelet
// would run those that were deleted. New does it by itself.
func Newest(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return newest{next} })
	return cfg
}

type newest struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (n newest) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet {
		return n.next.RoundTrip(req)
	}
	q := req.URL.Query()
	if q.Get("resourceVersion") != "0" || q.Has("watch") || q.Has("resourceVersionMatch") {
		return n.next.RoundTrip(req)
	}
	q.Del("resourceVersion")
	q.Del("limit") // it has no effect on an answer of any state
	own := req.Clone(req.Context())
	own.URL.RawQuery = q.Encode()
	return n.next.RoundTrip(own)
}

// WrappedRoundTripper implements net.RoundTripperWrapper, by which client-go finds the connection's own.
func (n newest) WrappedRoundTripper() http.RoundTripper { return n.next }
