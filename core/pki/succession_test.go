// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/pki/cabundle"
)

// accepts tells whether who trusts roots accepts what the pair shows, whole chain.
func accepts(t *testing.T, roots []*x509.Certificate, p *Pair) bool {
	t.Helper()
	o := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for _, r := range roots {
		o.Roots.AddCert(r)
	}
	for _, der := range p.Certificate().Certificate[1:] {
		o.Intermediates.AddCert(must[*x509.Certificate](t)(x509.ParseCertificate(der)))
	}
	_, err := p.leaf().Verify(o)
	return err == nil
}

func openIn(t *testing.T, dir string) *Authority {
	t.Helper()
	return must[*Authority](t)(Open(Config{Dir: dir}))
}

// serversOf are n servers with copies of one folder.
func serversOf(t *testing.T, n int) (all []*Authority) {
	t.Helper()
	first := t.TempDir()
	openIn(t, first)
	for range n {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(first)); err != nil {
			t.Fatal(err)
		}
		a := openIn(t, dir)
		for _, make := range []func() (*Pair, error){
			a.APIServer, func() (*Pair, error) { return a.Client(Admin()) },
			func() (*Pair, error) { return a.Client(FrontProxyClient()) },
		} {
			must[*Pair](t)(make())
		}
		all = append(all, a)
	}
	return all
}

func TestTheAuthorityChangesInSteps(t *testing.T) {
	all := serversOf(t, 2)
	a, b := all[0], all[1]
	before := a.ClusterCA()
	s, to, err := a.Successor(nil)
	if err != nil {
		t.Fatal(err)
	}
	sealed := must[[]byte](t)(a.Seal(s, to))
	if strings.Contains(string(sealed), "PRIVATE KEY") {
		t.Error("the sealed successor shows its key")
	}
	if _, err := openIn(t, t.TempDir()).Unseal(sealed, to); err == nil ||
		!strings.Contains(err.Error(), "sealed by a server with other keys") {
		t.Errorf("another cluster unsealed the successor: %v", err)
	}
	if _, err := b.Unseal(sealed, "sha256:other"); err == nil {
		t.Error("the successor was unsealed for another name")
	}
	for _, step := range []Step{Trusting, Signing, Dropping, Settled} {
		for _, server := range all {
			var given *Successor
			if step == Trusting {
				given = must[*Successor](t)(server.Unseal(sealed, to))
			}
			changed, err := server.Follow(step, to, given)
			if err != nil || changed != (step != Settled) {
				t.Fatalf("step %q: changed %v, %v", step, changed, err)
			}
			if changed, err := server.Follow(step, to, nil); changed || err != nil {
				t.Errorf("step %q again: changed %v, %v", step, changed, err)
			}
			for _, other := range all { // also while they are a step apart
				for name, p := range server.pairs {
					roots := other.TrustedCAs()
					if p.authority == server.frontProxy {
						roots = other.TrustedFrontProxyCAs()
					}
					if !accepts(t, roots, p) {
						t.Errorf("step %q: %s of one server is refused by another, which trusts %s", step, name, other.Trusts())
					}
				}
			}
		}
	}
	if a.Trusts() != to || b.Trusts() != to || cabundle.Pin(a.ClusterCA()) != to {
		t.Errorf("they trust %q and %q, want %q", a.Trusts(), b.Trusts(), to)
	}
	p := must[*Pair](t)(a.APIServer())
	if !accepts(t, []*x509.Certificate{before}, p) {
		t.Error("who has only ever known the old authority does not accept the server any more")
	}
	again := openIn(t, a.cfg.Dir)
	if again.Trusts() != to || must[*Pair](t)(again.APIServer()).Certificate().Leaf.SerialNumber.Cmp(p.leaf().SerialNumber) != 0 {
		t.Error("a restart changes what was there")
	}
	if files := must[[]string](t)(filepath.Glob(a.path("*.key"))); len(files) != 3 {
		t.Errorf("keys in the folder: %v", files)
	}
}

func TestAServerThatWasAwayIsNotOfTheNewAuthority(t *testing.T) {
	all := serversOf(t, 2)
	s, to, err := all[0].Successor(nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = must[bool](t)(all[0].Follow(Trusting, to, &s))
	_ = must[bool](t)(all[0].Follow(Signing, to, nil))
	if _, err := all[1].Follow(Signing, to, nil); err == nil || !strings.Contains(err.Error(), "join again") {
		t.Errorf("want a sentence on joining again, got %v", err)
	}
	if _, err := all[1].Follow(Trusting, to, nil); err == nil {
		t.Error("a server trusts a successor that it was not given")
	}
}

func TestWhatNobodyHasOpenIsSignedAnewToo(t *testing.T) {
	a := serversOf(t, 1)[0]
	idle := openIn(t, a.cfg.Dir)
	_ = must[*Pair](t)(idle.Client(Proxy()))
	s, to, err := a.Successor(nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = must[bool](t)(a.Follow(Trusting, to, &s))
	_ = must[bool](t)(a.Follow(Signing, to, nil))
	p := must[*Pair](t)(existing(a.cfg.Dir, "proxy"))
	if err := p.leaf().CheckSignatureFrom(a.ClusterCA()); err != nil {
		t.Error(err)
	}
	// Another process with the folder open, when it is told.
	if err := idle.Renew(); err != nil {
		t.Fatal(err)
	}
	if idle.Trusts() != a.Trusts() {
		t.Errorf("the other process trusts %s, want %s", idle.Trusts(), a.Trusts())
	}
}

// A crash leaves a prefix of the files that a step writes: the next start and the same step
// again come to the same end.
func TestACrashInTheMiddleOfAStep(t *testing.T) {
	writes := map[Step][]string{ // in their order; "-" = removed
		Trusting: {
			"front-proxy-ca.next.key", "front-proxy-ca.cross.crt", "front-proxy-ca.next.crt",
			"ca.next.key", "ca.cross.crt", "ca.next.crt",
		},
		Signing: {
			"front-proxy-ca.old.crt", "front-proxy-ca.key", "front-proxy-ca.crt", "-front-proxy-ca.next.key", "-front-proxy-ca.next.crt",
			"ca.old.crt", "ca.key", "ca.crt", "-ca.next.key", "-ca.next.crt",
		},
		Dropping: {"-ca.old.crt", "-front-proxy-ca.old.crt"},
	}
	for crashing, files := range writes {
		for done := range len(files) + 1 {
			crash(t, crashing, files[:done])
		}
	}
}

func crash(t *testing.T, crashing Step, written []string) {
	t.Helper()
	a := serversOf(t, 1)[0]
	s, to, err := a.Successor(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []Step{Trusting, Signing, Dropping} {
		before := t.TempDir()
		if err := os.CopyFS(before, os.DirFS(a.cfg.Dir)); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Follow(step, to, &s); err != nil {
			t.Fatal(err)
		}
		if step != crashing {
			continue
		}
		for _, name := range written {
			if gone, ok := strings.CutPrefix(name, "-"); ok {
				remove(t, before, gone)
				continue
			}
			write(t, before, name, string(must[[]byte](t)(os.ReadFile(a.path(name)))))
		}
		a = openIn(t, before)
		for _, make := range []func() (*Pair, error){a.APIServer, func() (*Pair, error) { return a.Client(FrontProxyClient()) }} {
			must[*Pair](t)(make())
		}
		if _, err := a.Follow(step, to, &s); err != nil {
			t.Fatalf("after a crash in step %s: %v", step, err)
		}
		for name, p := range a.pairs {
			if p.leaf().CheckSignatureFrom(p.authority.certificate()) != nil {
				t.Errorf("%s is signed by another authority than the one that signs", name)
			}
		}
	}
	if a.Trusts() != to || len(a.TrustedFrontProxyCAs()) != 1 {
		t.Errorf("it trusts %s, want %s", a.Trusts(), to)
	}
}

func TestAClientGoesOnWithWhatTheAuthorityIsNow(t *testing.T) {
	a := serversOf(t, 1)[0]
	pair := must[*Pair](t)(a.Client(Admin()))
	client := a.ClientTLS(pair)
	first := client()
	if client() != first {
		t.Error("the configuration is another one, though nothing has changed")
	}
	if err := a.Renew(); err != nil {
		t.Fatal(err)
	}
	if client() != first {
		t.Error("the configuration is another one, though nothing was to be renewed")
	}
	s, to, err := a.Successor(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []Step{Trusting, Signing, Dropping} {
		before := client()
		_ = must[bool](t)(a.Follow(step, to, &s))
		now := client()
		if now == before {
			t.Errorf("step %s: the configuration is that of the step before", step)
		}
		if shown := must[*tls.Certificate](t)(now.GetClientCertificate(nil)); shown.Leaf.CheckSignatureFrom(a.ClusterCA()) != nil {
			t.Errorf("step %s: the certificate is signed by another authority than the one that signs", step)
		}
		if !now.RootCAs.Equal(a.Roots()) {
			t.Errorf("step %s: it trusts others than the authority names", step)
		}
	}
}
