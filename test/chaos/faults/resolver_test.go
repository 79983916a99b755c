// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// outside is a name that the cluster asks others for; askFor is how long a client waits for an answer, by default.
const (
	outside = "outside.example."
	askFor  = 5 * time.Second
)

// resolver is what the machines' configurations name for names outside the cluster.
type resolver struct {
	at string
	on *dns.Server
}

func (r *resolver) start() error {
	socket, err := net.ListenPacket("udp", r.at)
	if err != nil {
		return err
	}
	answer := func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg).SetReply(q)
		// The time to live is 0: who answers from memory does so because nobody else does.
		head := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}
		a.Answer = []dns.RR{&dns.A{Hdr: head, A: net.IPv4(192, 0, 2, 1)}}
		_ = w.WriteMsg(a)
	}
	r.on = &dns.Server{PacketConn: socket, Handler: dns.HandlerFunc(answer)}
	go func() { _ = r.on.ActivateAndServe() }() // until stop
	return nil
}

func (r *resolver) stop() {
	if r.on != nil {
		_ = r.on.PacketConn.Close()
		r.on = nil
	}
}

// resolve asks the cluster's resolver, from the last machine, and says how long it took.
func (w *world) resolve(name string) (code int, took time.Duration, err error) {
	service, err := w.first().kube.CoreV1().Services("kube-system").Get(w.ctx, "kube-dns", metav1.GetOptions{})
	if err != nil {
		return 0, 0, err
	}
	last, began := w.machines[len(w.machines)-1], time.Now()
	var answer *dns.Msg
	inside := last.lab.In(last.name, func() error {
		ctx, cancel := context.WithTimeout(w.ctx, askFor)
		defer cancel()
		client := dns.Client{Timeout: askFor} // 2 s otherwise: as long as the cluster waits for others
		answer, _, err = client.ExchangeContext(ctx, new(dns.Msg).SetQuestion(name, dns.TypeA), net.JoinHostPort(service.Spec.ClusterIP, "53"))
		return nil
	})
	if took = time.Since(began); inside != nil || err != nil {
		return 0, took, fmt.Errorf("resolve %s: %w", name, errors.Join(inside, err))
	}
	return answer.Rcode, took, nil
}

// resolverGone has the resolver for names outside gone for a while: those fail, and say so in time for the client to
// hear it; names of the cluster resolve at once all the while.
func resolverGone(w *world) error {
	inside := fmt.Sprintf("%s.%s.svc.cluster.local.", web, w.names)
	expect := func(name string, wants int, within time.Duration) error {
		code, took, err := w.resolve(name)
		if err == nil && (code != wants || took > within) {
			err = fmt.Errorf("%s is answered with %s after %s, expected %s within %s",
				name, dns.RcodeToString[code], took, dns.RcodeToString[wants], within)
		}
		return err
	}
	problems, n := []error{expect(outside, dns.RcodeSuccess, time.Second)}, 0
	w.resolver.stop()
	for until := time.Now().Add(stop); time.Now().Before(until); w.hold(200 * time.Millisecond) {
		n++ // a name that nobody has asked for is in no cache
		problems = append(problems, expect(inside, dns.RcodeSuccess, time.Second),
			expect(fmt.Sprintf("n%d.%s", n, outside), dns.RcodeServerFailure, askFor))
	}
	problems = append(problems, w.resolver.start(), harness.Poll(w.ctx, 100*time.Millisecond, func() error {
		n++
		return expect(fmt.Sprintf("n%d.%s", n, outside), dns.RcodeSuccess, time.Second)
	}))
	return errors.Join(problems...)
}
