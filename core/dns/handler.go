// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// handler is between the wire and the plugins.
type handler struct {
	next    plugin.Handler
	clients []netip.Prefix
	own     *own
	metrics *metrics
	log     *slog.Logger
	// base is the context of Run: the library that calls hands none in.
	base context.Context //nolint:containedctx // see above
}

// ServeDNS implements dns.Handler.
func (h *handler) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	ctx, cancel := context.WithTimeout(h.base, 10*time.Second)
	defer cancel()
	began := time.Now()
	rcode := h.serve(ctx, w, r)
	h.metrics.observe(w.RemoteAddr().Network(), rcode, time.Since(began))
}

func (h *handler) serve(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (rcode int) {
	defer func() {
		if p := recover(); p != nil {
			h.log.ErrorContext(ctx, "answering a question panicked", "panic", p, "stack", string(debug.Stack()))
			rcode = h.fail(w, r, dns.RcodeServerFailure)
		}
	}()
	switch {
	case len(r.Question) != 1 || r.Opcode != dns.OpcodeQuery:
		return h.fail(w, r, dns.RcodeNotImplemented)
	case r.Question[0].Qclass != dns.ClassINET, !h.welcome(w.RemoteAddr()):
		return h.fail(w, r, dns.RcodeRefused)
	}
	// Answers are cut to what the client takes.
	rcode, err := h.next.ServeDNS(ctx, request.NewScrubWriter(r, w), r)
	if err != nil {
		h.log.DebugContext(ctx, "a name was not resolved", "name", r.Question[0].Name, "error", err)
	}
	if !plugin.ClientWrite(rcode) {
		return h.fail(w, r, rcode)
	}
	return rcode
}

// welcome: the machine itself always is, at loopback and at its other addresses.
func (h *handler) welcome(from net.Addr) bool {
	if len(h.clients) == 0 {
		return true
	}
	at, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return false
	}
	a := at.Addr().Unmap().WithZone("")
	return a.IsLoopback() || slices.ContainsFunc(h.clients, func(p netip.Prefix) bool { return p.Contains(a) }) || h.own.has(a)
}

func (h *handler) fail(w dns.ResponseWriter, r *dns.Msg, rcode int) int {
	m := new(dns.Msg)
	m.SetRcode(r, rcode)
	if err := w.WriteMsg(m); err != nil {
		h.log.Debug("could not answer", "error", err)
	}
	return rcode
}

// metrics count questions.
type metrics struct {
	answers  *prometheus.CounterVec
	duration prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wasmplane_dns_responses_total", Help: "Answers of the cluster's DNS, by protocol and response code.",
		}, []string{"proto", "rcode"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "wasmplane_dns_request_duration_seconds", Help: "Time that an answer took.",
			Buckets: []float64{0.00001, 0.00005, 0.0002, 0.001, 0.005, 0.02, 0.1, 0.5, 2},
		}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.answers, m.duration} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register the DNS metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) observe(proto string, rcode int, took time.Duration) {
	name, ok := dns.RcodeToString[rcode]
	if !ok {
		name = "other"
	}
	m.answers.WithLabelValues(strings.ToLower(proto), name).Inc()
	m.duration.Observe(took.Seconds())
}
