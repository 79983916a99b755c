// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdtest"
)

// external is an etcd of three members, each with an endpoint for clients.
func external(t *testing.T) (members []*etcd.Server, endpoints []string) {
	t.Helper()
	s := servers{t, newAuthority(t, "ca")}
	var first string
	for i, name := range []string{"a", "b", "c"} {
		address := freeAddress(t)
		var join []string
		if i > 0 {
			if err := members[0].Add(t.Context(), address); err != nil {
				t.Fatal(err)
			}
			join = []string{first}
		} else {
			first = "https://" + address
		}
		cfg := s.config(name, address, join...)
		cfg.Listen = []string{etcdtest.Socket(t)}
		m, _ := s.open(cfg)
		members, endpoints = append(members, m), append(endpoints, cfg.Listen[0])
		s.wait(members[0], name+" to vote", voting(i+1))
	}
	return members, endpoints
}

// follower returns a member that does not lead.
func follower(t *testing.T, members []*etcd.Server) int {
	t.Helper()
	all, err := members[0].Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"a", "b", "c"} {
		for _, m := range all {
			if m.Name == name && !m.Leader {
				return i
			}
		}
	}
	t.Fatal("all members lead")
	return 0
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	look := run.Backoff{First: 10 * time.Millisecond, Longest: time.Second}
	for !is() {
		if !look.Wait(ctx) {
			t.Fatal("waited for " + what)
		}
	}
}

// writing has some clients write and read through s while fault happens, and then on. None of them may notice.
func writing(t *testing.T, s *etcdclient.Store, when string, fault func()) {
	t.Helper()
	const clients, before, after = 6, 10, 40
	var all, begun sync.WaitGroup
	begun.Add(clients)
	happened := make(chan struct{})
	for c := range clients {
		all.Go(func() {
			last, longest := int64(0), time.Duration(0)
			started := sync.OnceFunc(begun.Done)
			defer started()
			for i := range before + after {
				if i == before {
					started()
				}
				over := false
				select {
				case <-happened:
					over = true
				default:
				}
				key, value := fmt.Sprintf("/registry/%s/client-%d", when, c), fmt.Appendf(nil, "%d", i)
				began := time.Now()
				rev, err := s.Put(t.Context(), key, value, last, 0)
				if err != nil {
					t.Errorf("client %d, write %d, after the fault %v, after %s: %v", c, i, over, time.Since(began), err)
					return
				}
				if kv, err := s.Get(t.Context(), key); err != nil || kv.ModRevision != rev || string(kv.Value) != string(value) {
					t.Errorf("client %d, read %d: %+v at %d, %v", c, i, kv, rev, err)
					return
				}
				longest = max(longest, time.Since(began))
				last = rev
			}
			t.Logf("%s: client %d waited for %s at most", when, c, longest)
		})
	}
	begun.Wait()
	fault()
	close(happened)
	all.Wait()
}

// One of three members is cut off from the others, so that it has no leader: clients don't notice, nor while it has
// not noticed itself. Who knows that member alone is told why nothing can be written, and goes on when it is back.
func TestAMemberWithoutALeaderStallsNobody(t *testing.T) {
	members, endpoints := external(t)
	cut := follower(t, members)
	s := dial(t, etcdclient.Config{Endpoints: endpoints, Timeout: 6 * time.Second})
	one := dial(t, etcdclient.Config{Endpoints: endpoints[cut : cut+1], Timeout: time.Minute})
	put(t, one, "/registry/before")
	var mend func()
	writing(t, s, "while-it-is-cut-off", func() { mend = sync.OnceFunc(members[cut].Cut()) })
	t.Cleanup(mend) // a member that is still cut off cannot be stopped
	until(t, "the member to notice", func() bool { return !members[cut].HasLeader() })
	writing(t, s, "afterwards", func() {})

	_, err := one.Put(t.Context(), "/registry/cut-off", []byte("x"), 0, 0)
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a write at the member that is cut off: %v", err)
	}
	wantError(t, err, "no leader", endpoints[cut])
	if _, err := one.Get(t.Context(), "/registry/before"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a read at the member that is cut off: %v", err)
	}
	mend()
	putAtLast(t, one, "/registry/after")
	get(t, s, "/registry/after")
}

// No member reaches another one, so that none leads: each says at once that it can do nothing, and clients hear that.
func TestAStoreWithoutAMajoritySaysSo(t *testing.T) {
	members, endpoints := external(t)
	s := dial(t, etcdclient.Config{Endpoints: endpoints, Timeout: 2 * time.Minute})
	put(t, s, "/registry/before")
	for _, m := range members {
		t.Cleanup(m.Cut())
	}
	for _, m := range members {
		until(t, "each member to notice", func() bool { return !m.HasLeader() })
	}
	for verb, call := range map[string]func() error{
		"put":    func() error { _, err := s.Put(t.Context(), "/registry/new", []byte("x"), 0, 0); return err },
		"delete": func() error { _, err := s.Delete(t.Context(), "/registry/before", 1); return err },
		"get":    func() error { _, err := s.Get(t.Context(), "/registry/before"); return err },
	} {
		if err := call(); !errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

// A member falls silent with its connections standing, as one that is stopped: clients don't notice.
func TestASilentMemberStallsNobody(t *testing.T) {
	members, endpoints := external(t)
	silent := follower(t, members)
	p := newPipe(t, endpoints[silent])
	endpoints[silent] = p.url
	s := dial(t, etcdclient.Config{Endpoints: endpoints, Timeout: 30 * time.Second})
	writing(t, s, "while-it-falls-silent", p.stop)
	writing(t, s, "while-it-goes-on", p.carryOn)
}

// pipe carries connections to an endpoint, and holds them back while it is stopped.
type pipe struct {
	url string
	mu  sync.Mutex
	on  chan struct{} // closed while bytes may pass
}

func newPipe(t *testing.T, to string) *pipe {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(filepath.Dir(u.Path), "pipe")
	p := &pipe{url: "unix://" + path, on: make(chan struct{})}
	close(p.on)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var tasks run.Tasks
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		tasks.Wait()
	})
	tasks.Go("pipe", func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := (&net.Dialer{}).DialContext(ctx, "unix", u.Path)
			if err != nil {
				_ = in.Close()
				continue
			}
			end := func() { _ = in.Close(); _ = out.Close() }
			context.AfterFunc(ctx, end)
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				tasks.Go("pipe: connection", func() { p.carry(ctx, way[1], way[0]); end() })
			}
		}
	})
	return p
}

func (p *pipe) carry(ctx context.Context, to io.Writer, from io.Reader) {
	part := make([]byte, 32<<10)
	for {
		n, err := from.Read(part)
		p.mu.Lock()
		on := p.on
		p.mu.Unlock()
		if !run.Await(ctx, on) {
			return
		}
		if _, failed := to.Write(part[:n]); err != nil || failed != nil {
			return
		}
	}
}

func (p *pipe) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = make(chan struct{})
}

func (p *pipe) carryOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.on)
}
