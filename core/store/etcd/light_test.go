// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
)

// gate is what members say of light servers.
type gate struct{ refusal atomic.Pointer[error] }

func (g *gate) admit(_ context.Context, name string, _ time.Time) error {
	if name != "light" {
		return errors.New("the test knows no server " + name)
	}
	if err := g.refusal.Load(); err != nil {
		return *err
	}
	return nil
}

// member is the configuration of a member that lets light servers in.
func (s servers) member(g *gate, name, address string, join ...string) etcd.ServerConfig {
	cfg := s.config(name, address, join...)
	cfg.Peers.Admit = g.admit
	return cfg
}

// lightPair is the certificate of a light server: for a client alone.
func (s servers) lightPair() string {
	s.t.Helper()
	s.ca.issueFor("light", &x509.Certificate{}, x509.ExtKeyUsageClientAuth)
	return s.ca.pair("light")
}

// light connects to members, and keeps in list which there are.
func (s servers) light(list *members, urls ...string) *etcd.Light {
	s.t.Helper()
	l, err := etcd.DialMembers(s.t.Context(), etcd.LightConfig{
		Members: urls, PairFile: s.lightPair(), CAFile: s.ca.file("ca.crt"), Changed: list.keep,
		Progress: func(step string) { s.t.Log(step) }, Logger: slog.New(slog.NewTextHandler(s.t.Output(), nil)),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := l.Close(); err != nil && !errors.Is(err, context.Canceled) {
			s.t.Error(err)
		}
	})
	return l
}

// members are the URLs that a light server would know after a restart.
type members struct {
	mu   sync.Mutex
	urls []string
}

func (m *members) keep(urls []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.urls = slices.Clone(urls)
	return nil
}

func (m *members) has(url string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.urls, url)
}

// awaited waits for a condition.
func awaited(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	look := run.Backoff{First: 20 * time.Millisecond, Longest: time.Second}
	for !ok() {
		if !look.Wait(ctx) {
			t.Fatal("waited for " + what)
		}
	}
}

// A light server reads, writes and watches through members that come and go, and is told when it was removed, also in
// the middle of a watch.
func TestALightServerFollowsTheMembers(t *testing.T) {
	s, g, list := servers{t, newAuthority(t, "ca")}, &gate{}, &members{}
	addressA, addressB, addressC := freeAddress(t), freeAddress(t), freeAddress(t)
	a, endA := s.open(s.member(g, "a", addressA))
	l := s.light(list, "https://"+addressA)
	put(t, l.Store(), "/registry/first")
	get(t, a.Store(), "/registry/first")
	rev, err := l.Store().Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var saved bytes.Buffer
	if n, err := l.Store().Backup(t.Context(), &saved); err != nil || n == 0 {
		t.Errorf("a backup of %d bytes: %v", n, err)
	}
	awaited(t, "the store's size", func() bool { return l.Usage().File > 0 })

	further := func(name, address string) *etcd.Server {
		if err := a.Add(t.Context(), address); err != nil {
			t.Fatal(err)
		}
		m, _ := s.open(s.member(g, name, address, "https://"+addressA))
		return m
	}
	b := further("b", addressB)
	further("c", addressC)
	s.wait(a, "three members", voting(3))
	awaited(t, "the light server to know all", func() bool { return list.has("https://"+addressB) && list.has("https://"+addressC) })
	all, err := l.Members(t.Context())
	if err != nil || !voting(3)(all) || slices.ContainsFunc(all, func(m store.Member) bool { return m.Self }) ||
		!slices.ContainsFunc(all, func(m store.Member) bool { return m.Leader }) {
		t.Errorf("the light server sees %+v, %v", all, err)
	}

	// Quiet connections stay, and the member that it began with ends.
	endA()
	putAtLast(t, l.Store(), "/registry/without-a")
	again := s.light(&members{}, list.urls...)
	get(t, again.Store(), "/registry/first")

	// It decides nothing about the members.
	for what, err := range map[string]error{
		"open": l.Open(t.Context(), addressA), "add": l.Add(t.Context(), addressA), "remove": l.Remove(t.Context(), all[0].ID),
		"removable": l.Removable(t.Context(), all[0].ID),
	} {
		if err == nil {
			t.Errorf("%s by a light server", what)
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	w, err := l.Store().Watch(ctx, "/registry/", rev)
	if err != nil {
		t.Fatal(err)
	}
	if first := <-w.Batches(); len(first.Events) == 0 {
		t.Errorf("the watch begins with %+v, %v", first, w.Err())
	}
	removed := store.ErrRemoved
	g.refusal.Store(&removed)
	putAtLast(t, b.Store(), "/registry/secret")
	for batch := range w.Batches() {
		if slices.ContainsFunc(batch.Events, func(e store.Event) bool { return e.KV.Key == "/registry/secret" }) {
			t.Error("a server that was removed goes on watching")
		}
	}
	select {
	case <-l.Done():
		if err := l.Err(ctx); !errors.Is(err, store.ErrRemoved) {
			t.Errorf("ended for another reason: %v", err)
		}
	case <-ctx.Done():
		t.Error("the light server goes on")
	}
	if _, err := etcd.DialMembers(ctx, etcd.LightConfig{
		Members: list.urls, PairFile: s.ca.pair("light"), CAFile: s.ca.file("ca.crt"), Progress: func(string) {},
		Logger: slog.New(slog.DiscardHandler),
	}); !errors.Is(err, store.ErrRemoved) {
		t.Errorf("it came back: %v", err)
	}
}

// The certificate of a light server opens the store, and no way to the members among themselves; a member's opens that way alone.
func TestALightServerIsNoMember(t *testing.T) {
	s, g := servers{t, newAuthority(t, "ca")}, &gate{}
	address := freeAddress(t)
	s.open(s.member(g, "a", address))
	s.lightPair()
	asking := func(pair string, protocols ...string) *tls.Config {
		cert, err := tls.LoadX509KeyPair(s.ca.file(pair+".crt"), s.ca.file(pair+".key"))
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AddCert(s.ca.cert)
		return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{cert}, NextProtos: protocols}
	}
	for _, path := range []string{"/members", "/raft", "/raft/snapshot", "/members/promote/1", "/leases"} {
		one := &http.Client{Transport: &http.Transport{TLSClientConfig: asking("light", "http/1.1"), DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := one.Do(req); err == nil {
			_ = resp.Body.Close()
			t.Errorf("%s answers a light server: %s", path, resp.Status)
		}
	}
	client := func(pair string) *clientv3.Client {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + address}, TLS: asking(pair), Context: t.Context()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	light, ctx := client("light"), t.Context()
	if _, err := light.Get(ctx, "/registry/a"); err != nil {
		t.Errorf("read: %v", err)
	}
	other := "https://" + freeAddress(t)
	for what, err := range map[string]error{
		"add a member":    second(light.MemberAdd(ctx, []string{other})),
		"add a learner":   second(light.MemberAddAsLearner(ctx, []string{other})),
		"remove a member": second(light.MemberRemove(ctx, 1)),
		"move a member":   second(light.MemberUpdate(ctx, 1, []string{other})),
		"defragment":      second(light.Defragment(ctx, "https://"+address)),
		"disarm":          second(light.AlarmDisarm(ctx, &clientv3.AlarmMember{})),
		"enable users":    second(light.AuthEnable(ctx)),
		"add a user":      second(light.UserAdd(ctx, "me", "me")),
		"move leadership": second(light.MoveLeader(ctx, 1)),
	} {
		if status.Code(err) != codes.PermissionDenied && !strings.Contains(err.Error(), "is for servers that keep the store") {
			t.Errorf("%s: %v", what, err)
		}
	}
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := client("a").Get(short, "/registry/a"); err == nil {
		t.Error("a member reads the store by the way of light servers")
	}
	// While a member does not know who was removed, it refuses, and a client may come again.
	unknown := errors.New("the API is starting")
	g.refusal.Store(&unknown)
	if _, err := light.Get(ctx, "/registry/a"); status.Code(err) != codes.Unavailable {
		t.Errorf("while nothing is known: %v", err)
	}
}

func second[T any](_ T, err error) error {
	if err == nil {
		return errors.New("it was done")
	}
	return err
}

// pair is a certificate with its key in one file.
func (a *authority) pair(name string) string {
	a.t.Helper()
	var both []byte
	for _, part := range []string{".crt", ".key"} {
		data, err := os.ReadFile(a.file(name + part))
		if err != nil {
			a.t.Fatal(err)
		}
		both = append(both, data...)
	}
	if err := os.WriteFile(a.file(name+".pem"), both, 0o600); err != nil {
		a.t.Fatal(err)
	}
	return a.file(name + ".pem")
}
