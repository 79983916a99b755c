// SPDX-License-Identifier: Apache-2.0

// Package reach tries from a node which addresses it reaches: whether a connection is accepted,
// or a DNS answers. It sends no data but a DNS question, to literal addresses alone, and a
// request is bounded in their number, in time and in how many are tried at once.
//
// Who may ask a node for it may run commands in its pods as well (nodes/proxy, create), and so
// learns nothing new.
package reach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Path at the kubelet's server.
const Path = "/wasmplane/reach"

const (
	// Most targets of one request.
	Most = 256
	// Patience with one target.
	Patience = 2 * time.Second
	// atOnce is how many are tried at a time.
	atOnce = 32
)

// Kinds of targets.
const (
	TCP = "tcp" // a connection is accepted
	DNS = "dns" // an answer comes to a question by UDP
)

// Target is one address to try.
type Target struct {
	Kind    string `json:"kind"`
	Address string `json:"address"` // IP:PORT
	// Question is the name that a DNS is asked for, with the final dot.
	Question string `json:"question,omitempty"`
}

// Result of one target; the empty one is good.
type Result struct {
	Problem string `json:"problem,omitempty"`
	// Refused: the machine answers, and nothing listens there.
	Refused bool `json:"refused,omitempty"`
}

// Validate says what is wrong with a request.
func Validate(targets []Target) error {
	if len(targets) > Most {
		return fmt.Errorf("expected at most %d targets, found %d", Most, len(targets))
	}
	for i, t := range targets {
		if _, err := netip.ParseAddrPort(t.Address); err != nil {
			return fmt.Errorf("target %d: expected IP:PORT, found %q", i, t.Address)
		}
		if t.Kind != TCP && (t.Kind != DNS || t.Question == "") {
			return fmt.Errorf("target %d: expected the kind %s, or %s with a question, found %q", i, TCP, DNS, t.Kind)
		}
	}
	return nil
}

// Try tries valid targets. The results have their order.
func Try(ctx context.Context, targets []Target) []Result {
	out := make([]Result, len(targets))
	turn := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, t := range targets {
		all.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			out[i] = one(ctx, t)
		})
	}
	all.Wait()
	return out
}

func one(ctx context.Context, t Target) Result {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	err := connect(ctx, t)
	switch {
	case err == nil:
		return Result{}
	case errors.Is(err, syscall.ECONNREFUSED):
		return Result{"connection refused", true}
	case errors.Is(err, context.DeadlineExceeded) || timedOut(err):
		return Result{Problem: fmt.Sprintf("no answer within %s", Patience)}
	}
	return Result{Problem: err.Error()}
}

func timedOut(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func connect(ctx context.Context, t Target) error {
	dial := func(ctx context.Context, network string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, t.Address)
	}
	if t.Kind == TCP {
		conn, err := dial(ctx, "tcp")
		if err != nil {
			return err
		}
		return conn.Close()
	}
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, "udp") }}
	_, err := r.LookupHost(ctx, t.Question)
	var dns *net.DNSError
	// Any answer shows the way. A machine that asks under its own address, as by a route on a
	// link that both share, is even refused one: DNS serves the pods' network.
	if errors.As(err, &dns) && !dns.IsTimeout && (dns.IsNotFound || dns.Err == "server misbehaving") {
		return nil
	}
	return err
}
