// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"slices"

	"golang.org/x/net/netutil"
	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/proxy/healthports"
)

// mostProbes that are connected at one time: whoever reaches the node may ask.
const mostProbes = 256

// Health answers load balancers and probes in upstream's form: at /healthz whether new connections
// should come to this node, at /livez whether the proxy does its work. eligible says whether the node
// is to stay: nil = always.
func (p *Proxy) Health(eligible func() bool) http.Handler {
	answer := func(eligible func() bool) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			healthy, updated, now := p.pulse.State()
			body := map[string]any{"lastUpdated": updated, "currentTime": now, "healthy": healthy}
			status := map[string]any{}
			for _, s := range p.sides {
				status[s.planner.family.name()] = map[string]any{"lastUpdated": updated, "healthy": healthy}
			}
			body["status"] = status
			if eligible != nil {
				stays := eligible()
				body["nodeEligible"] = stays
				healthy = healthy && stays
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			if !healthy {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_ = json.NewEncoder(w).Encode(body) // a prober that went away needs no answer
		}
	}
	if eligible == nil {
		eligible = func() bool { return true }
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", answer(eligible))
	mux.HandleFunc("/livez", answer(nil))
	return mux
}

// Mode answers at /proxyMode how Services are made reachable, as upstream's proxy says it.
func Mode(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write([]byte("nftables")) // who went away needs no answer
}

// Status is what upstream's proxy says of itself to its own machine: how it works, whether it does, and its metrics.
func (p *Proxy) Status() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /proxyMode", Mode)
	mux.Handle("GET /healthz", p.Health(nil))
	mux.Handle("GET /livez", p.Health(nil))
	mux.Handle("GET /metrics", p.metrics())
	return mux
}

// name of a family in the API.
func (f family) name() string {
	if f.ip6 {
		return string(corev1.IPv6Protocol)
	}
	return string(corev1.IPv4Protocol)
}

// Stays says whether a node is to get new connections: it is not being deleted, nor marked for it by
// the cluster autoscaler.
func Stays(node *corev1.Node) bool {
	return node != nil && node.DeletionTimestamp == nil && !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == "ToBeDeletedByClusterAutoscaler"
	})
}

// ServeHealth serves Health at l until ctx ends.
func (p *Proxy) ServeHealth(ctx context.Context, l net.Listener, eligible func() bool) error {
	return serveUntil(ctx, l, p.Health(eligible))
}

// ServeStatus serves Status at l until ctx ends.
func (p *Proxy) ServeStatus(ctx context.Context, l net.Listener) error {
	return serveUntil(ctx, l, p.Status())
}

func serveUntil(ctx context.Context, l net.Listener, h http.Handler) error {
	server, done := healthports.Serve(netutil.LimitListener(l, mostProbes), h)
	select {
	case <-ctx.Done():
		healthports.End(ctx, server)
		<-done
		return nil
	case err := <-done:
		return err
	}
}
