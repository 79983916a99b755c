// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
)

// servers are members of one store, each as if it were on a machine of its own.
type servers struct {
	t  *testing.T
	ca *authority
}

func (s servers) config(name, address string, join ...string) etcd.ServerConfig {
	s.t.Helper()
	pair := s.ca.file(name + ".pem")
	if _, err := os.Stat(pair); err != nil {
		s.ca.issue(name, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
		pair = s.ca.pair(name)
	}
	return etcd.ServerConfig{
		Dir: filepath.Join(s.ca.dir, "data-"+name), NoFsync: true, Timeout: 2 * time.Minute,
		Peers: &etcd.Peers{Name: name, PairFile: pair, CAFile: s.ca.file("ca.crt"), Address: address, Join: join},
	}
}

// open starts a member; end stops it, once.
func (s servers) open(cfg etcd.ServerConfig) (m *etcd.Server, end func()) {
	s.t.Helper()
	m, err := etcd.Start(s.t.Context(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	closed := false
	end = func() {
		if closed {
			return
		}
		closed = true
		if err := m.Close(); err != nil {
			s.t.Error(err)
		}
	}
	s.t.Cleanup(end)
	return m, end
}

// wait waits for the members to be as they should.
func (s servers) wait(m *etcd.Server, what string, want func([]store.Member) bool) []store.Member {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	look := run.Backoff{First: 20 * time.Millisecond, Longest: time.Second}
	for {
		all, err := m.Members(ctx)
		if err == nil && want(all) {
			return all
		}
		if !look.Wait(ctx) {
			s.t.Fatalf("waited for %s: %+v, %v", what, all, err)
		}
	}
}

func voting(n int) func([]store.Member) bool {
	return func(all []store.Member) bool {
		voters := 0
		for _, m := range all {
			if !m.Learner && m.Alive {
				voters++
			}
		}
		return voters == n && len(all) == n
	}
}

func idOf(t *testing.T, all []store.Member, name string) string {
	t.Helper()
	for _, m := range all {
		if m.Name == name {
			return m.ID
		}
	}
	t.Fatalf("no member %s in %+v", name, all)
	return ""
}

func put(t *testing.T, s store.Store, key string) {
	t.Helper()
	if _, err := s.Put(t.Context(), key, []byte(key), 0, 0); err != nil {
		t.Errorf("put %s: %v", key, err)
	}
}

// putAtLast is a client that tries again.
func putAtLast(t *testing.T, s store.Store, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	again := run.Backoff{First: 20 * time.Millisecond, Longest: time.Second}
	for {
		_, err := s.Put(ctx, key, []byte(key), 0, 0)
		var there *store.ConflictError // done by one that was said to have failed
		if err == nil || errors.As(err, &there) && string(there.Current.Value) == key {
			return
		}
		if !errors.Is(err, store.ErrUnavailable) || !again.Wait(ctx) {
			t.Fatalf("put %s: %v", key, err)
		}
	}
}

func get(t *testing.T, s store.Store, key string) {
	t.Helper()
	if kv, err := s.Get(t.Context(), key); err != nil || string(kv.Value) != key {
		t.Errorf("get %s: %q, %v", key, kv.Value, err)
	}
}

// A store of one member, which listens nowhere, grows to three while it is used, loses
// one and goes on, and what was removed does not come back with data of the past.
func TestAStoreGrowsAndShrinks(t *testing.T) {
	s := servers{t, newAuthority(t, "ca")}
	a, endA := s.open(s.config("a", ""))
	put(t, a.Store(), "/registry/first")
	if all := s.wait(a, "one member", voting(1)); all[0].Peer != "" || !all[0].Leader || !all[0].Self {
		t.Errorf("alone: %+v", all)
	}
	addressA, addressB, addressC := freeAddress(t), freeAddress(t), freeAddress(t)
	for range 2 { // also when it is open already
		if err := a.Open(t.Context(), addressA); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Open(t.Context(), addressB); err == nil || !strings.Contains(err.Error(), addressA) {
		t.Errorf("opened at another address: %v", err)
	}

	// A member that was added and never comes neither votes nor stops writes; there is room for one such.
	if err := a.Add(t.Context(), addressB); err != nil {
		t.Fatal(err)
	}
	put(t, a.Store(), "/registry/while-b-is-not-there")
	if err := a.Add(t.Context(), addressC); err == nil || !strings.Contains(err.Error(), "does not vote yet") {
		t.Errorf("a second learner: %v", err)
	}
	b, endB := s.open(s.config("b", addressB, "https://"+addressA))
	get(t, b.Store(), "/registry/first")
	put(t, b.Store(), "/registry/by-b")
	s.wait(b, "two members", voting(2))
	if err := b.Add(t.Context(), addressC); err != nil {
		t.Fatal(err)
	}
	c, endC := s.open(s.config("c", addressC, "https://"+addressB, "https://"+addressA))
	all := s.wait(a, "three members", voting(3))
	get(t, c.Store(), "/registry/by-b")
	put(t, c.Store(), "/registry/by-c")

	// The one that leads ends: the others go on, and it comes back without being added again.
	endA()
	putAtLast(t, b.Store(), "/registry/without-a")
	if err := c.Removable(t.Context(), idOf(t, all, "b")); !errors.Is(err, store.ErrQuorum) {
		t.Errorf("of two that are left one may go: %v", err)
	}
	a, endA = s.open(s.config("a", addressA))
	get(t, a.Store(), "/registry/without-a")
	s.wait(b, "three members again", voting(3))

	// One that is off is removed, and told when it comes back.
	endC()
	s.wait(a, "c to be gone", func(all []store.Member) bool { return !voting(3)(all) })
	if err := a.Remove(t.Context(), idOf(t, all, "c")); err != nil {
		t.Fatal(err)
	}
	s.wait(a, "two members", voting(2))
	if _, err := etcd.Start(t.Context(), s.config("c", addressC)); !errors.Is(err, store.ErrRemoved) {
		t.Errorf("the removed member came back: %v", err)
	}

	// One that lives and is removed ends, and knows why; the last one stays.
	if err := a.Remove(t.Context(), idOf(t, all, "b")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.Done():
		if err := b.Err(t.Context()); !errors.Is(err, store.ErrRemoved) {
			t.Errorf("b ended for another reason: %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("b still runs")
	}
	endB()
	putAtLast(t, a.Store(), "/registry/alone-again")
	if err := a.Remove(t.Context(), idOf(t, all, "a")); !errors.Is(err, store.ErrQuorum) {
		t.Errorf("the last member was removed: %v", err)
	}
	endA()
}

// Who has no certificate of the members' authority gets nothing from the peers' port.
func TestStrangersAreNotServedAsPeers(t *testing.T) {
	s := servers{t, newAuthority(t, "ca")}
	a, _ := s.open(s.config("a", ""))
	address := freeAddress(t)
	if err := a.Open(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	other := servers{t, newAuthority(t, "ca")}
	cfg := other.config("b", freeAddress(t), "https://"+address)
	if _, err := etcd.Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "no server of the cluster can be reached") {
		t.Errorf("a stranger joined: %v", err)
	}
}

// A port that another process has is named before anything else happens.
func TestAPeerPortThatIsTakenIsNamed(t *testing.T) {
	s := servers{t, newAuthority(t, "ca")}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	cfg := s.config("a", l.Addr().String())
	if _, err := etcd.Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "store.peerPort") {
		t.Errorf("started at a port that is taken: %v", err)
	}
	if _, err := os.Stat(filepath.Join(cfg.Dir, "member")); err == nil {
		t.Error("it has made a store all the same")
	}
}

// Of three members two are lost for good: the third goes on alone with what it has, under
// revisions that nobody has seen, and grows again.
func TestTheLastMemberGoesOnAlone(t *testing.T) {
	s := servers{t, newAuthority(t, "ca")}
	addressA, addressB, addressC := freeAddress(t), freeAddress(t), freeAddress(t)
	a, endA := s.open(s.config("a", addressA))
	if err := a.Add(t.Context(), addressB); err != nil {
		t.Fatal(err)
	}
	b, endB := s.open(s.config("b", addressB, "https://"+addressA))
	s.wait(b, "two members", voting(2))
	put(t, a.Store(), "/registry/kept")
	before, err := b.Store().Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	endA()
	endB()

	cfg := s.config("b", addressB)
	next := cfg.Dir + ".next"
	info, err := etcd.Survive(t.Context(), etcd.SurviveConfig{
		Dir: cfg.Dir, To: next, Name: "b", Address: addressB, Bump: 1000, Server: etcd.ServerConfig{NoFsync: true, Timeout: 2 * time.Minute},
	})
	if err != nil || info.Keys == 0 {
		t.Fatalf("%+v, %v", info, err)
	}
	for _, left := range []string{next + ".copy", next + ".snapshot"} {
		if _, err := os.Stat(left); err == nil {
			t.Errorf("%s is left", left)
		}
	}
	cfg.Dir = next
	b, _ = s.open(cfg)
	get(t, b.Store(), "/registry/kept")
	if rev, err := b.Store().Revision(t.Context()); err != nil || rev < before+1000 {
		t.Errorf("it goes on at revision %d, %v; clients have seen %d", rev, err, before)
	}
	if all := s.wait(b, "one member", voting(1)); all[0].Peer != "https://"+addressB {
		t.Errorf("%+v", all)
	}
	if err := b.Add(t.Context(), addressC); err != nil {
		t.Fatal(err)
	}
	c, _ := s.open(s.config("c", addressC, "https://"+addressB))
	get(t, c.Store(), "/registry/kept")
	s.wait(c, "two members", voting(2))
}

// What a client was told to be written is kept by a member that goes on alone, also where the process died before it wrote
// down that the entry is committed. A copy of the files of one that runs is what a dead one leaves.
func TestWhatWasAnsweredBeforeTheLossIsKept(t *testing.T) {
	s := servers{t, newAuthority(t, "ca")}
	addressA, addressB := freeAddress(t), freeAddress(t)
	a, _ := s.open(s.config("a", addressA))
	if err := a.Add(t.Context(), addressB); err != nil {
		t.Fatal(err)
	}
	b, _ := s.open(s.config("b", addressB, "https://"+addressA))
	s.wait(b, "two members", voting(2))
	put(t, a.Store(), "/registry/kept")
	cfg := s.config("a", addressA)
	dead, next := t.TempDir(), filepath.Join(t.TempDir(), "next")
	if err := os.CopyFS(dead, os.DirFS(cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Survive(t.Context(), etcd.SurviveConfig{
		Dir: dead, To: next, Name: "a", Address: addressA, Bump: 1000, Server: etcd.ServerConfig{NoFsync: true, Timeout: 2 * time.Minute},
	}); err != nil {
		t.Fatal(err)
	}
	cfg = s.config("alone", freeAddress(t))
	cfg.Dir = next
	alone, _ := s.open(cfg)
	get(t, alone.Store(), "/registry/kept")
}

// The member that leads is killed while others write: through the members that are left
// every write and read succeeds, and each write is done once.
func TestNobodyNoticesThatTheLeaderDies(t *testing.T) {
	s := servers{t, newAuthority(t, "ca")}
	addressA, addressB, addressC := freeAddress(t), freeAddress(t), freeAddress(t)
	a, _ := s.open(s.config("a", addressA))
	if err := a.Add(t.Context(), addressB); err != nil {
		t.Fatal(err)
	}
	b, _ := s.open(s.config("b", addressB, "https://"+addressA))
	s.wait(b, "two members", voting(2))
	if err := b.Add(t.Context(), addressC); err != nil {
		t.Fatal(err)
	}
	c, _ := s.open(s.config("c", addressC, "https://"+addressB))
	members := map[string]*etcd.Server{"a": a, "b": b, "c": c}
	for _, m := range s.wait(c, "three members", voting(3)) {
		if m.Leader {
			members[m.Name].Kill()
			delete(members, m.Name)
		}
	}
	if len(members) != 2 {
		t.Fatal("nobody led")
	}
	for name, m := range members { // what follows writes on their way changes nothing
		before, err := m.Store().Revision(t.Context())
		passed := m.Store().Pass(t.Context())
		if after, again := m.Store().Revision(t.Context()); errors.Join(err, passed, again) != nil || after != before {
			t.Errorf("through %s: %v, %v, %v; the revision was %d and is %d", name, err, passed, again, before, after)
		}
	}
	for name, m := range members { // also who they are
		if all, err := m.Members(t.Context()); err != nil || len(all) != 3 {
			t.Errorf("members through %s: %v, %v", name, all, err)
		}
	}
	const writes = 50
	var all sync.WaitGroup
	for name, m := range members {
		all.Go(func() {
			last := int64(0)
			for i := range writes {
				key := fmt.Sprintf("/registry/%s", name)
				value := fmt.Appendf(nil, "%d", i)
				rev, err := m.Store().Put(t.Context(), key, value, last, 0)
				if err != nil {
					t.Errorf("write %d through %s: %v", i, name, err)
					return
				}
				if kv, err := m.Store().Get(t.Context(), key); err != nil || kv.ModRevision != rev || string(kv.Value) != string(value) {
					t.Errorf("read %d through %s: %+v at %d, %v", i, name, kv, rev, err)
				}
				last = rev
			}
		})
	}
	all.Wait()
	if _, err := b.Store().Put(t.Context(), "/registry/with-a-lease", []byte("x"), 0, time.Hour); err != nil && members["b"] != nil {
		t.Error(err)
	}
}

// A member that joins a cluster which has begun a moment ago, and has not settled on its version, waits until it has.
func TestAMemberWaitsForTheVersionOfAClusterThatHasJustBegun(t *testing.T) {
	s := servers{t, newAuthority(t, "ca")}
	address := freeAddress(t)
	var asked atomic.Int64
	var first string
	young := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Etcd-Cluster-ID", "1234")
		switch r.URL.Path {
		case "/members":
			fmt.Fprintf(w, `[{"id":1,"name":"a","peerURLs":[%q]},{"id":2,"peerURLs":["https://%s"],"isLearner":true}]`, first, address)
		case "/version":
			version := "not_decided"
			if asked.Add(1) > 2 {
				version = "3.7.0"
			}
			fmt.Fprintf(w, `{"etcdserver":"3.7.3","etcdcluster":%q}`, version)
		default:
			http.NotFound(w, r)
		}
	}))
	cfg := s.config("b", address)
	pair, err := tls.LoadX509KeyPair(cfg.Peers.PairFile, cfg.Peers.PairFile)
	if err != nil {
		t.Fatal(err)
	}
	young.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	young.StartTLS()
	defer young.Close()
	first = young.URL
	cfg.Peers.Join = []string{first}

	// It opens, and waits for others from then on, whom this test does not have.
	ctx, cancel := context.WithCancelCause(t.Context())
	opened := errors.New("it is open")
	cfg.Timeout, cfg.Progress = time.Millisecond, func(string) { cancel(opened) }
	if _, err := etcd.Start(ctx, cfg); !errors.Is(err, opened) {
		t.Errorf("after %d questions for the version: %v", asked.Load(), err)
	}
	if asked.Load() < 3 {
		t.Errorf("%d questions for the version, want 3 or more", asked.Load())
	}
}
