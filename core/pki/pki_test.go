// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
)

func open(t *testing.T, dir string, now time.Time) *Authority {
	t.Helper()
	a, err := Open(config(dir, now))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func config(dir string, now time.Time) Config {
	return Config{
		Dir: dir, ServiceIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Hosts: []string{"host-a", "192.0.2.7"},
		Now: func() time.Time { return now },
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, e := range must[[]os.DirEntry](t)(os.ReadDir(dir)) {
		files[e.Name()] = string(must[[]byte](t)(os.ReadFile(filepath.Join(dir, e.Name()))))
	}
	return files
}

func everyPair(t *testing.T, a *Authority) map[string]*Pair {
	t.Helper()
	pairs := map[string]*Pair{"apiserver": must[*Pair](t)(a.APIServer()), "kubelet": must[*Pair](t)(a.KubeletServing("n1", "192.0.2.9"))}
	for _, id := range []Identity{
		Admin(), BreakGlass(), Scheduler(), ControllerManager(), Proxy(), KubeletClient(), FrontProxyClient(),
		Node("n1"),
	} {
		pairs[id.Name] = must[*Pair](t)(a.Client(id))
	}
	return pairs
}

func TestStartingTwiceChangesNothing(t *testing.T) {
	dir, now := filepath.Join(t.TempDir(), "pki"), time.Now()
	everyPair(t, open(t, dir, now))
	before := contents(t, dir)
	everyPair(t, open(t, dir, now.Add(200*24*time.Hour)))
	for name, was := range before {
		if is := contents(t, dir)[name]; is != was {
			t.Errorf("%s changed", name)
		}
	}
}

func TestOnlyTheOwnerCanReadKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	everyPair(t, open(t, dir, time.Now()))
	if mode := must[os.FileInfo](t)(os.Stat(dir)).Mode().Perm(); mode != 0o700 {
		t.Errorf("directory has mode %o", mode)
	}
	for name, content := range contents(t, dir) {
		mode := must[os.FileInfo](t)(os.Stat(filepath.Join(dir, name))).Mode().Perm()
		if strings.Contains(content, "PRIVATE KEY") && mode != 0o600 {
			t.Errorf("%s holds a key and has mode %o", name, mode)
		}
	}
}

func TestClientAndServerTrustEachOther(t *testing.T) {
	a := open(t, t.TempDir(), time.Now())
	server, client := must[*Pair](t)(a.APIServer()), must[*Pair](t)(a.Client(Node("n1")))
	roots := x509.NewCertPool()
	roots.AddCert(a.ClusterCA())
	config := ServerTLS(server)
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, roots
	for _, host := range []string{"localhost", "127.0.0.1", "10.96.0.1", "kubernetes.default.svc.cluster.local", "host-a", "192.0.2.7"} {
		c, s := net.Pipe()
		srv := tls.Server(s, config)
		done := run.Go("handshake", func() error { return srv.HandshakeContext(t.Context()) })
		cli := tls.Client(c, &tls.Config{RootCAs: roots, ServerName: host, GetClientCertificate: client.GetClientCertificate})
		if err := cli.HandshakeContext(t.Context()); err != nil {
			t.Fatalf("%s: %v", host, err)
		}
		if err := <-done; err != nil {
			t.Fatalf("%s: %v", host, err)
		}
		subject := srv.ConnectionState().PeerCertificates[0].Subject
		if subject.CommonName != "system:node:n1" || len(subject.Organization) != 1 || subject.Organization[0] != "system:nodes" {
			t.Errorf("the server sees %v", subject)
		}
	}
}

// A client learns whose certificates are asked for, also of authorities that came later, and is
// let in with another's.
func TestClientsLearnWhoseCertificatesAreAskedFor(t *testing.T) {
	a, other := open(t, t.TempDir(), time.Now()), open(t, t.TempDir(), time.Now())
	server, stranger := must[*Pair](t)(a.APIServer()), must[*Pair](t)(other.Client(Node("n1")))
	authorities := []*x509.Certificate{a.ClusterCA()}
	config := AskingFor(ServerTLS(server), func() []*x509.Certificate { return authorities })
	for range 2 {
		c, s := net.Pipe()
		srv := tls.Server(s, config)
		done := run.Go("handshake", func() error { return srv.HandshakeContext(t.Context()) })
		var named [][]byte
		cli := tls.Client(c, &tls.Config{
			RootCAs: a.Roots(), ServerName: "localhost",
			GetClientCertificate: func(asked *tls.CertificateRequestInfo) (*tls.Certificate, error) {
				named = asked.AcceptableCAs
				return stranger.Certificate(), nil
			},
		})
		if err := errors.Join(cli.HandshakeContext(t.Context()), <-done); err != nil {
			t.Fatal(err)
		}
		if len(srv.ConnectionState().PeerCertificates) == 0 {
			t.Error("the server has not got the stranger's certificate")
		}
		var want [][]byte
		for _, authority := range authorities {
			want = append(want, authority.RawSubject)
		}
		if !slices.EqualFunc(named, want, bytes.Equal) {
			t.Errorf("%d authorities are named: %q, want %q", len(named), named, want)
		}
		authorities = append(authorities, other.FrontProxyCA())
	}
}

func TestCertificatesAreRenewedInTheLastThirdOfTheirLife(t *testing.T) {
	dir, start := t.TempDir(), time.Now()
	now := start
	cfg := config(dir, now)
	cfg.Now = func() time.Time { return now }
	a := must[*Authority](t)(Open(cfg))
	pair := must[*Pair](t)(a.Client(Scheduler()))
	first := pair.leaf()
	now = start.Add(leafLife / 2)
	if err := a.Renew(); err != nil || !pair.leaf().Equal(first) {
		t.Fatalf("renewed too early, or: %v", err)
	}
	select {
	case <-a.Changed():
		t.Error("a change is reported, and there was none")
	default:
	}
	now = start.Add(leafLife * 3 / 4)
	if err := a.Renew(); err != nil || pair.leaf().Equal(first) {
		t.Fatalf("not renewed, error: %v", err)
	}
	select {
	case <-a.Changed():
	default:
		t.Error("who keeps copies was not told")
	}
	if !pair.leaf().NotAfter.After(now.Add(leafLife - time.Hour)) {
		t.Errorf("the new one ends at %s", pair.leaf().NotAfter)
	}
	again := must[*Pair](t)(open(t, dir, now).Client(Scheduler()))
	if !again.leaf().Equal(pair.leaf()) {
		t.Error("the file holds another certificate")
	}
}

func TestARenewedAuthorityStillVouchesForOldLeaves(t *testing.T) {
	dir, start := t.TempDir(), time.Now()
	open(t, dir, start)
	late := start.Add(caLife * 2 / 3).Add(-24 * time.Hour)
	old := open(t, dir, late)
	leaf := must[*Pair](t)(old.Client(Admin())).leaf()
	renewed := open(t, dir, late.Add(48*time.Hour))
	if renewed.ClusterCA().Equal(old.ClusterCA()) {
		t.Fatal("the authority was not renewed")
	}
	roots := x509.NewCertPool()
	roots.AddCert(renewed.ClusterCA())
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: late.Add(49 * time.Hour),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		t.Error(err)
	}
}

func TestDamage(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		want   string // empty: it heals
	}{
		{"a leaf cut short heals", func(t *testing.T, dir string) { write(t, dir, "scheduler.pem", "-----BEGIN") }, ""},
		{"a leaf gone heals", func(t *testing.T, dir string) { remove(t, dir, "scheduler.pem") }, ""},
		{"an authority whose certificate was not written yet heals", func(t *testing.T, dir string) { remove(t, dir, "ca.crt") }, ""},
		{"an authority without key does not", func(t *testing.T, dir string) { remove(t, dir, "ca.key") }, "restore the key from a backup"},
		{"an authority with another's key does not", func(t *testing.T, dir string) {
			write(t, dir, "ca.key", string(must[[]byte](t)(os.ReadFile(filepath.Join(dir, "sa.key")))))
		}, "is not the key of"},
		{"a broken service account key does not", func(t *testing.T, dir string) { write(t, dir, "sa.key", "no pem") }, "sa.key: expected a PEM block"},
		{"the key of a public key alone heals", func(t *testing.T, dir string) { remove(t, dir, "sa.pub") }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			must[*Pair](t)(open(t, dir, time.Now()).Client(Scheduler()))
			c.damage(t, dir)
			a, err := Open(config(dir, time.Now()))
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("error %v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			must[*Pair](t)(a.Client(Scheduler()))
		})
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func TestANewHostGetsANewServingCertificate(t *testing.T) {
	dir := t.TempDir()
	first := must[*Pair](t)(open(t, dir, time.Now()).APIServer()).leaf()
	cfg := config(dir, time.Now())
	cfg.Hosts = append(cfg.Hosts, "host-b")
	second := must[*Pair](t)(must[*Authority](t)(Open(cfg)).APIServer()).leaf()
	if second.Equal(first) || second.VerifyHostname("host-b") != nil {
		t.Error("host-b is not in the certificate")
	}
}

func TestIdentityNamesCannotLeaveTheDirectory(t *testing.T) {
	a := open(t, t.TempDir(), time.Now())
	for _, name := range []string{"../../etc/x", "a/b", ""} {
		if _, err := a.KubeletServing(name); name != "" && err == nil {
			t.Errorf("node %q was accepted", name)
		}
		if _, err := a.Client(Identity{Name: name, User: "u"}); err == nil {
			t.Errorf("identity %q was accepted", name)
		}
	}
}

func FuzzParsePair(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := parsePair(data); err == nil && c.tls.Leaf == nil {
			t.Error("a pair without a certificate")
		}
	})
}

// A folder of certificates is listed with what each is for, the next to end first.
func TestCertificatesAreListed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	a, err := Open(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	peer, authority, err := a.EtcdPeer("192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	if again, file, err := a.EtcdPeer("192.0.2.1"); err != nil || again != peer || file != authority {
		t.Errorf("a second time: %v", err)
	}
	if err := peer.Certificate().Leaf.VerifyHostname("192.0.2.1"); err != nil {
		t.Error(err)
	}
	if use := peer.Certificate().Leaf.ExtKeyUsage; len(use) != 2 {
		t.Errorf("a peer both calls and is called, its certificate is for %v", use)
	}
	if err := peer.Certificate().Leaf.CheckSignatureFrom(a.ClusterCA()); err == nil {
		t.Error("the API's authority has signed the peer")
	}
	for _, f := range []func() (*Pair, error){a.APIServer, func() (*Pair, error) { return a.Client(Node("n")) }} {
		if _, err := f(); err != nil {
			t.Fatal(err)
		}
	}
	found, err := List(dir, filepath.Join(dir, "missing"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, c := range found {
		got = append(got, filepath.Base(c.File)+": "+c.For+", by "+c.SignedBy)
		if i > 0 && c.Ends.Before(found[i-1].Ends) {
			t.Errorf("%s ends before %s", c.File, found[i-1].File)
		}
	}
	slices.Sort(got)
	want := []string{
		"apiserver.pem: server of the API, by kubernetes", "ca.crt: authority of the API, its clients and nodes, by itself",
		"etcd-ca.crt: authority of the servers' stores, by itself", "etcd-peer.pem: this server's store, towards the others, by etcd-ca",
		"front-proxy-ca.crt: authority of authenticating proxies, by itself", "node-n.pem: system:node:n, as a client, by kubernetes",
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed\n%q, want\n%q", got, want)
	}
}

// A node's certificate begins when it is made, so that those from before a removal can be
// told from it; others cover clocks that run behind.
func TestWhenCertificatesBegin(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	a, err := Open(Config{Dir: t.TempDir(), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	for id, before := range map[string]time.Duration{"node": 0, "scheduler": backdate} {
		who := Scheduler()
		if id == "node" {
			who = Node("n")
		}
		pair, err := a.Client(who)
		if err != nil {
			t.Fatal(err)
		}
		if want := now.Add(-before); !pair.leaf().NotBefore.Equal(want) {
			t.Errorf("that of the %s begins %s, want %s", id, pair.leaf().NotBefore, want)
		}
	}
}

// Certificates that are renewed by hand are as before but for key and dates; who has the
// folder open goes on with them, and what was not named stays as it is.
func TestRenewNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		a, err := Open(Config{Dir: dir, ServiceIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}})
		if err != nil {
			t.Fatal(err)
		}
		server, err := a.APIServer()
		if err != nil {
			t.Fatal(err)
		}
		client, err := a.Client(Scheduler())
		if err != nil {
			t.Fatal(err)
		}
		peer, _, err := a.EtcdPeer("192.0.2.1")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := run.Go("authority", func() error { return a.Run(ctx) })
		synctest.Wait()
		before := map[*Pair]*tls.Certificate{}
		for _, p := range []*Pair{server, client, peer} {
			before[p] = p.Certificate()
		}
		if _, err := RenewNow(dir, []string{"apiserver", "none"}, time.Now()); err == nil || !strings.Contains(err.Error(),
			"there are apiserver, etcd-peer, scheduler") {
			t.Errorf("a name that is not there: %v", err)
		}
		for _, step := range []struct {
			names []string
			want  []string
			new   []*Pair
		}{
			{[]string{"apiserver"}, []string{"apiserver"}, []*Pair{server}},
			{nil, []string{"apiserver", "etcd-peer", "scheduler"}, []*Pair{server, client, peer}},
		} {
			renewed, err := RenewNow(dir, step.names, time.Now())
			if err != nil || !slices.Equal(renewed, step.want) {
				t.Fatalf("renewed %v, %v", renewed, err)
			}
			<-time.After(10 * time.Second) // of the bubble
			synctest.Wait()
			for p, old := range before {
				now := p.Certificate()
				if changed := !bytes.Equal(now.Certificate[0], old.Certificate[0]); changed != slices.Contains(step.new, p) {
					t.Errorf("after renewing %v, %s has changed: %v", step.names, p.name, changed)
				}
				if err := p.request.satisfiedBy(now.Leaf); err != nil {
					t.Errorf("%s: %v", p.name, err)
				}
				before[p] = now
			}
		}
		// What somebody else has signed is left to them.
		other, err := Open(Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		foreign, err := other.Client(Scheduler())
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, "foreign.pem", string(foreign.PEM()))
		kept := before[server].Certificate[0]
		if _, err := RenewNow(dir, nil, time.Now()); err == nil || !strings.Contains(err.Error(), "signed by none of the authorities") {
			t.Errorf("a foreign certificate: %v", err)
		}
		if c, err := existing(dir, "apiserver"); err != nil || !bytes.Equal(mustRead(t, c.file), server.PEM()) ||
			!bytes.Equal(server.Certificate().Certificate[0], kept) {
			t.Errorf("others were renewed though one could not be: %v", err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func mustRead(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
