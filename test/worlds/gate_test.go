// SPDX-License-Identifier: Apache-2.0

package worlds

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// verdict is what happens to a call that waits at the gate.
type verdict uint8

const (
	pass   verdict = iota
	refuse         // it does not happen
	lose           // it happens, and nobody hears of it
	cut            // the connection of a watch ends
)

func (v verdict) String() string { return [...]string{"pass", "refuse", "lose", "cut"}[v] }

// The errors that clients see.
var (
	errRefused = errors.New("connection refused (by the world)")
	errLost    = errors.New("connection reset by peer (by the world)")
	errDied    = errors.New("the process has died (by the world)")
)

// call is a request, or a delivery of a watch, that waits until it is chosen.
type call struct {
	key     string // whose it is, and what: the same in every run of a seed
	serial  int    // of calls with this key
	life    *life
	watch   bool // it is a delivery
	release chan verdict
}

// acts holds a write against who leads: a component of which only one may act does so as
// long as it leads, and no longer.
func (l *life) acts(req *http.Request) {
	if l.part.role == "" || req.Method == http.MethodGet || strings.Contains(req.URL.Path, "/leases") ||
		strings.Contains(req.URL.Path, "/events") {
		return
	}
	l.w.mu.Lock()
	leads := l.w.leading[l.part.role]
	l.w.mu.Unlock()
	if leads != l {
		l.w.fail("%s writes, and does not lead: %s %s", l.id, req.Method, req.URL.Path)
	}
}

// gate is where calls wait.
type gate struct {
	mu      sync.Mutex
	waiting []*call
	serials map[string]int
	open    bool                  // nothing waits any more
	stuck   func(key string) bool // calls that wait all the same; nil = none
}

func newGate() *gate { return &gate{serials: map[string]int{}} }

// wait has a call wait until somebody chooses it.
func (g *gate) wait(ctx context.Context, l *life, key string, watch bool) (verdict, error) {
	g.mu.Lock()
	if l.dead {
		g.mu.Unlock()
		return refuse, errDied
	}
	if g.open && (g.stuck == nil || !g.stuck(key)) {
		g.mu.Unlock()
		l.part.passed(key)
		return pass, nil
	}
	g.serials[key]++
	c := &call{key: key, serial: g.serials[key], life: l, watch: watch, release: make(chan verdict, 1)}
	g.waiting = append(g.waiting, c)
	g.mu.Unlock()
	select {
	case v := <-c.release:
		return v, nil
	case <-ctx.Done():
	case <-l.died:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = slices.DeleteFunc(g.waiting, func(o *call) bool { return o == c })
	return refuse, cmp.Or(ctx.Err(), errDied)
}

// calls are those that wait, in an order that does not depend on when they came.
func (g *gate) calls() []*call {
	g.mu.Lock()
	defer g.mu.Unlock()
	slices.SortFunc(g.waiting, func(a, b *call) int {
		return cmp.Or(strings.Compare(a.key, b.key), cmp.Compare(a.serial, b.serial))
	})
	return slices.Clone(g.waiting)
}

// choose lets a call go on.
func (g *gate) choose(c *call, v verdict) {
	g.mu.Lock()
	g.waiting = slices.DeleteFunc(g.waiting, func(o *call) bool { return o == c })
	g.mu.Unlock()
	c.release <- v
}

// opened lets everything pass from now on, or has it wait.
func (g *gate) opened(open bool) {
	g.mu.Lock()
	g.open, g.stuck = open, nil
	waiting := g.waiting
	g.waiting = nil
	g.mu.Unlock()
	for _, c := range waiting {
		c.release <- pass
	}
}

// stick has calls wait, although the gate is open, until it is told of others.
func (g *gate) stick(which func(key string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stuck = which
	g.waiting = slices.DeleteFunc(g.waiting, func(c *call) bool {
		if g.open && (which == nil || !which(c.key)) {
			c.release <- pass
			return true
		}
		return false
	})
}

// life is one run of a component, from its start to its death.
type life struct {
	part  *part
	w     *world
	id    string          // another one in each life
	leads context.Context //nolint:containedctx // of its leadership, under the world's lock; nil = it has not led
	at    *server
	dead  bool          // under the gate's lock
	died  chan struct{} // closed with it
}

// die fails every call of the life, those that wait and those that come.
func (g *gate) die(l *life) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !l.dead {
		l.dead = true
		close(l.died)
	}
}

// through has a component's requests wait at the gate.
func (g *gate) through(cfg *rest.Config, l *life) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Transport = &gated{gate: g, life: l, next: cfg.Transport}
	return cfg
}

type gated struct {
	gate *gate
	life *life
	next http.RoundTripper
}

// volatile are parameters of requests whose values no seed repeats.
var volatile = []string{"resourceVersion", "timeoutSeconds", "timeout", "continue"}

// name is what a request is called: its user, verb and path.
func (t *gated) name(req *http.Request) string {
	q := req.URL.Query()
	for _, v := range volatile {
		q.Del(v)
	}
	what := ""
	if strings.Contains(req.Header.Get("Accept"), "PartialObjectMetadata") {
		what = "metadata of "
	}
	return strings.TrimSuffix(fmt.Sprintf("%s %s %s%s?%s", t.life.part.name, req.Method, what, req.URL.Path, q.Encode()), "?")
}

// RoundTrip implements http.RoundTripper.
func (t *gated) RoundTrip(req *http.Request) (*http.Response, error) {
	name := t.name(req)
	watch := req.URL.Query().Get("watch") != ""
	v, err := t.gate.wait(req.Context(), t.life, name, false)
	switch {
	case err != nil:
		return nil, err
	case v == refuse, v == cut, v == lose && (watch || req.Method == http.MethodGet):
		return nil, errRefused
	}
	t.life.acts(req)
	resp, err := t.next.RoundTrip(req)
	switch {
	case err != nil:
		return nil, err
	case watch:
		resp.Body = &delivery{ReadCloser: resp.Body, t: t, name: name + " delivers", ctx: req.Context()}
		return resp, nil
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if v == lose {
		return nil, errLost
	}
	if t.gate.isDead(t.life) {
		return nil, errDied
	}
	resp.Body = io.NopCloser(bytes.NewReader(all))
	return resp, nil
}

// WrappedRoundTripper implements net.RoundTripperWrapper: clients find that the server is in the process.
func (t *gated) WrappedRoundTripper() http.RoundTripper { return t.next }

func (g *gate) isDead(l *life) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return l.dead
}

// delivery is the body of a watch, each piece of which waits at the gate.
type delivery struct {
	io.ReadCloser
	t    *gated
	name string
	ctx  context.Context //nolint:containedctx // of this request
	rest []byte
	end  error
}

// Read implements io.Reader.
func (d *delivery) Read(p []byte) (int, error) {
	for len(d.rest) == 0 {
		if d.end != nil {
			return 0, d.end
		}
		piece := make([]byte, 64<<10)
		n, err := d.ReadCloser.Read(piece)
		d.rest, d.end = piece[:n], err
		v, err := d.t.gate.wait(d.ctx, d.t.life, d.name, true)
		if err != nil {
			return 0, err
		}
		if v != pass {
			_ = d.Close()
			d.rest, d.end = nil, io.ErrUnexpectedEOF
		}
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}
