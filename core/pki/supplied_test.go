// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/pki/cabundle"
)

// own is an authority as an operator's own tools make them.
type own struct {
	cert  *x509.Certificate
	key   crypto.Signer
	chain []*x509.Certificate // with it, up to the root
}

func newOwn(t *testing.T, key crypto.Signer, by *own, change func(*x509.Certificate)) *own {
	t.Helper()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "CA of Example", Organization: []string{"Example Ltd."}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(5 * 365 * 24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	if by != nil {
		tmpl.Subject.CommonName = "Intermediate " + tmpl.SerialNumber.String()
	}
	if change != nil {
		change(tmpl)
	}
	parent, signer, above := tmpl, key, []*x509.Certificate(nil)
	if by != nil {
		parent, signer, above = by.cert, by.key, by.chain
	}
	cert := must[*x509.Certificate](t)(x509.ParseCertificate(must[[]byte](t)(x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(),
		signer))))
	return &own{cert, key, append([]*x509.Certificate{cert}, above...)}
}

func ec(t *testing.T) crypto.Signer {
	t.Helper()
	return must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
}

func rsaKey(t *testing.T, bits int) crypto.Signer {
	t.Helper()
	return must[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, bits))
}

func (o *own) keyPEM(t *testing.T) []byte {
	t.Helper()
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must[[]byte](t)(x509.MarshalPKCS8PrivateKey(o.key))})
}

func (o *own) given(t *testing.T) *Given {
	t.Helper()
	return &Given{Cert: cabundle.Encode(o.chain...), Key: o.keyPEM(t)}
}

// supply begins a folder with an authority.
func (o *own) supply(t *testing.T, name string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write(t, dir, name+".crt", string(cabundle.Encode(o.chain...)))
	write(t, dir, name+".key", string(o.keyPEM(t)))
	return dir
}

func (o *own) root() *x509.Certificate { return o.chain[len(o.chain)-1] }

func TestAnAuthorityOfOnesOwnSigns(t *testing.T) {
	root := newOwn(t, rsaKey(t, 2048), nil, nil)
	upper := newOwn(t, ec(t), root, nil)
	for name, o := range map[string]*own{
		"a root with an RSA key":                       root,
		"a root with an ECDSA key":                     newOwn(t, ec(t), nil, nil),
		"an ECDSA intermediate of an RSA root":         newOwn(t, ec(t), root, func(c *x509.Certificate) { c.MaxPathLenZero = true }),
		"an RSA intermediate below another":            newOwn(t, rsaKey(t, 2048), upper, nil),
		"a root whose path length allows none below":   newOwn(t, ec(t), nil, func(c *x509.Certificate) { c.MaxPathLenZero = true }),
		"an intermediate that may serve clients' ends": newOwn(t, ec(t), root, func(c *x509.Certificate) { c.ExtKeyUsage = append(serving, calling...) }),
	} {
		t.Run(name, func(t *testing.T) {
			a := openIn(t, o.supply(t, "ca"))
			if !a.ClusterCA().Equal(o.cert) || !a.Supplied() {
				t.Fatal("the authority that was supplied does not sign")
			}
			for _, p := range everyPair(t, a) {
				if p.authority == a.cluster && !accepts(t, []*x509.Certificate{o.root()}, p) {
					t.Errorf("who knows the root alone refuses %s", p.name)
				}
				if p.authority == a.cluster && !accepts(t, a.TrustedCAs(), p) {
					t.Errorf("a server of the cluster refuses %s", p.name)
				}
			}
			if string(a.RootsPEM()) != string(cabundle.Encode(o.root())) || a.Trusts() != cabundle.Pin(o.cert) {
				t.Errorf("clients are given %s, machines trust %s", a.RootsPEM(), a.Trusts())
			}
			before := contents(t, a.cfg.Dir)
			again := openIn(t, a.cfg.Dir)
			everyPair(t, again)
			for file, text := range contents(t, a.cfg.Dir) {
				if before[file] != text {
					t.Errorf("starting again changed %s", file)
				}
			}
		})
	}
}

// Whatever else the root of an intermediate signs is nobody here.
func TestOthersOfTheSameRootAreStrangers(t *testing.T) {
	root := newOwn(t, ec(t), nil, nil)
	a := openIn(t, newOwn(t, ec(t), root, nil).supply(t, "ca"))
	sister := openIn(t, newOwn(t, ec(t), root, nil).supply(t, "ca"))
	theirs := must[*Pair](t)(sister.Client(BreakGlass()))
	if accepts(t, a.TrustedCAs(), theirs) || accepts(t, must[[]*x509.Certificate](t)(cabundle.Parse(a.CAPEM())), theirs) {
		t.Error("a certificate of another authority below the same root is accepted as a client's")
	}
	leaf := must[*Pair](t)(a.APIServer())
	shown := must[*tls.Certificate](t)(WithAuthority(ServerTLS(leaf), a.ClusterCA).GetCertificate(nil))
	if len(shown.Certificate) != 2 || string(shown.Certificate[1]) != string(a.ClusterCA().Raw) {
		t.Errorf("the server sends %d certificates, want its own and the intermediate, once", len(shown.Certificate))
	}
}

func TestAnAuthorityThatWillNotDoIsRefused(t *testing.T) {
	root := newOwn(t, ec(t), nil, nil)
	narrow := newOwn(t, ec(t), nil, func(c *x509.Certificate) { c.MaxPathLenZero = true })
	plain := func(change func(*x509.Certificate)) *own { return newOwn(t, ec(t), nil, change) }
	noRoot := newOwn(t, ec(t), root, nil)
	noRoot.chain = noRoot.chain[:1]
	foreign := newOwn(t, ec(t), root, nil)
	foreign.chain = append(foreign.chain, narrow.cert)
	wrongKey := plain(nil)
	wrongKey.key = ec(t)
	_, young, _ := ed25519.GenerateKey(rand.Reader)
	day := 24 * time.Hour
	for name, c := range map[string]struct {
		own  *own
		want string
	}{
		"key of another":      {wrongKey, "is not the key of"},
		"no authority":        {plain(func(c *x509.Certificate) { c.IsCA = false }), "lacks CA:TRUE"},
		"may not sign":        {plain(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature }), "keyCertSign"},
		"without a key usage": {plain(func(c *x509.Certificate) { c.KeyUsage = 0 }), "keyCertSign"},
		"expired":             {plain(func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Now().Add(-9*day), time.Now().Add(-day) }), "has expired on"},
		"not begun":           {plain(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(day) }), "set the clock"},
		"root above expired":  {newOwn(t, ec(t), plain(func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Now().Add(-9*day), time.Now().Add(-day) }), nil), "has expired on"},
		"no room below":       {newOwn(t, ec(t), narrow, nil), "allows 0 authorities below it (path length), and there are 1"},
		"root missing":        {noRoot, "append the certificates above it up to the root"},
		"something else too":  {foreign, "is not above the first one"},
		"weak":                {newOwn(t, rsaKey(t, 1024), nil, nil), "found RSA of 1024 bits"},
		"Ed25519":             {newOwn(t, young, nil, nil), "found ed25519"},
		"for clients only":    {plain(func(c *x509.Certificate) { c.ExtKeyUsage = calling }), "extended key usages"},
		"for other names only": {plain(func(c *x509.Certificate) {
			c.PermittedDNSDomains, c.PermittedDNSDomainsCritical = []string{"example.com"}, true
		}), "name constraints"},
		"for other networks only": {plain(func(c *x509.Certificate) {
			c.ExcludedIPRanges = []*net.IPNet{{IP: net.IPv4(10, 96, 0, 0).To4(), Mask: net.CIDRMask(12, 32)}}
		}), "name constraints"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := c.own.supply(t, "ca")
			before := contents(t, dir)
			_, err := Open(Config{Dir: dir, ServiceIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("it is opened with %v, want an error with %q", err, c.want)
			}
			if after := contents(t, dir); after["ca.crt"] != before["ca.crt"] || after["ca.key"] != before["ca.key"] {
				t.Error("a refusal changed the authority")
			}
			a := openIn(t, t.TempDir())
			want := strings.Replace(c.want, "is not the key of", "the key is not that of", 1)
			if name == "for other networks only" {
				return // the other one has no such address
			}
			if _, _, err := a.Successor(c.own.given(t)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("it is to follow with %v, want an error with %q", err, want)
			}
		})
	}
}

func TestKeysThatOtherToolsWrite(t *testing.T) {
	key := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	plain := must[[]byte](t)(keyPEM(key))
	curve := pem.EncodeToMemory(&pem.Block{Type: "EC PARAMETERS", Bytes: []byte{6, 8, 42, 134, 72, 206, 61, 3, 1, 7}})
	if _, err := parseSigner(append(curve, plain...)); err != nil {
		t.Errorf("a key behind its curve: %v", err)
	}
	r := rsaKey(t, 2048)
	if back, err := parseSigner(must[[]byte](t)(keyPEM(r))); err != nil || !back.Public().(publicKey).Equal(r.Public()) {
		t.Errorf("an RSA key in PKCS #1: %v", err)
	}
	for name, text := range map[string]string{
		"PKCS #8":     "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
		"traditional": "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n",
	} {
		if _, err := parseSigner([]byte(text)); err == nil || !strings.Contains(err.Error(), "openssl pkey") {
			t.Errorf("an encrypted key (%s): %v", name, err)
		}
	}
}

// The stores of the servers let in whoever the root vouches for.
func TestTheStoresAuthorityIsItsOwnRoot(t *testing.T) {
	root := newOwn(t, ec(t), nil, nil)
	dir := newOwn(t, ec(t), root, nil).supply(t, "etcd-ca")
	if _, _, err := openIn(t, dir).EtcdPeer("127.0.0.1"); err == nil || !strings.Contains(err.Error(), "use a root of its own") {
		t.Errorf("an intermediate is taken for the stores: %v", err)
	}
	if _, _, err := openIn(t, root.supply(t, "etcd-ca")).EtcdPeer("127.0.0.1"); err != nil {
		t.Errorf("a root is refused: %v", err)
	}
}

func TestAnAuthorityThatWasSuppliedIsNotSignedAgain(t *testing.T) {
	o := newOwn(t, ec(t), nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(40 * 24 * time.Hour) })
	dir := o.supply(t, "ca")
	a := openIn(t, dir)
	if !a.ClusterCA().Equal(o.cert) {
		t.Error("it was signed again near its end")
	}
	if end := must[*Pair](t)(a.APIServer()).leaf().NotAfter; end.After(o.cert.NotAfter) {
		t.Errorf("a certificate ends at %s, after its authority", end)
	}
	// The operator has it renewed, with the same key: what was signed stays.
	before := must[*Pair](t)(a.APIServer()).leaf()
	later := newOwn(t, o.key, nil, func(c *x509.Certificate) { c.SubjectKeyId = o.cert.SubjectKeyId })
	write(t, dir, "ca.crt", string(cabundle.Encode(later.cert)))
	if err := a.Renew(); err != nil || !a.ClusterCA().Equal(later.cert) {
		t.Fatalf("the later certificate is not taken: %v", err)
	}
	if !accepts(t, []*x509.Certificate{later.cert}, must[*Pair](t)(a.APIServer())) || before.CheckSignatureFrom(later.cert) != nil {
		t.Error("what was signed before does not hold any more")
	}
	// One that will not do is not taken while the server runs.
	bad := newOwn(t, o.key, nil, func(c *x509.Certificate) { c.IsCA = false })
	write(t, dir, "ca.crt", string(cabundle.Encode(bad.cert)))
	if err := a.Renew(); err == nil || !a.ClusterCA().Equal(later.cert) {
		t.Errorf("a certificate that is no authority's was taken: %v", err)
	}
}

// The authority of one's own changes in the same steps, to another of one's own and to one of ours.
func TestAuthoritiesOfOnesOwnFollowOneAnother(t *testing.T) {
	root := newOwn(t, rsaKey(t, 2048), nil, nil)
	for name, c := range map[string]struct {
		from, to *own // nil: of ours
		keeps    bool // who knows the first root alone accepts what the second signs
	}{
		"another intermediate of the root":            {newOwn(t, ec(t), root, nil), newOwn(t, rsaKey(t, 2048), root, nil), true},
		"an intermediate of another root":             {newOwn(t, ec(t), root, nil), newOwn(t, ec(t), newOwn(t, ec(t), nil, nil), nil), true},
		"from one that may have nobody below":         {newOwn(t, ec(t), root, func(c *x509.Certificate) { c.MaxPathLenZero = true }), newOwn(t, ec(t), nil, nil), false},
		"from ours to an intermediate":                {nil, newOwn(t, ec(t), root, nil), true},
		"from an intermediate to ours":                {newOwn(t, ec(t), root, nil), nil, true},
		"from a root with an RSA key to one with RSA": {root, newOwn(t, rsaKey(t, 2048), nil, nil), true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if c.from != nil {
				dir = c.from.supply(t, "ca")
			}
			a := openIn(t, dir)
			first := a.cluster.roots()
			everyPair(t, a)
			var given *Given
			if c.to != nil {
				given = c.to.given(t)
			}
			s, to, err := a.Successor(given)
			if err != nil {
				t.Fatal(err)
			}
			sealed := must[[]byte](t)(a.Seal(s, to))
			for _, step := range []Step{Trusting, Signing, Dropping, Settled} {
				var with *Successor
				if step == Trusting {
					with = must[*Successor](t)(a.Unseal(sealed, to))
				}
				_ = must[bool](t)(a.Follow(step, to, with))
				for _, p := range everyPair(t, a) {
					if p.authority == a.cluster && (!accepts(t, a.TrustedCAs(), p) || !accepts(t, a.cluster.roots(), p)) {
						t.Errorf("step %q: %s is refused", step, p.name)
					}
				}
				if step == Signing {
					if got := accepts(t, first, must[*Pair](t)(a.APIServer())); got != c.keeps {
						t.Errorf("who knows the first root alone accepts the server: %v, want %v", got, c.keeps)
					}
				}
			}
			if cabundle.Pin(a.ClusterCA()) != to || a.Trusts() != to {
				t.Errorf("in the end %s signs and %s are trusted, want %s", cabundle.Pin(a.ClusterCA()), a.Trusts(), to)
			}
			if c.to != nil && string(a.RootsPEM()) != string(cabundle.Encode(c.to.root())) {
				t.Error("clients are not given the new root")
			}
			if left := must[[]string](t)(filepath.Glob(filepath.Join(dir, "*.next.*"))); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			if openIn(t, dir).Trusts() != to {
				t.Error("a restart trusts another one")
			}
		})
	}
}

func TestTheSameKeyDoesNotFollowItself(t *testing.T) {
	o := newOwn(t, ec(t), nil, nil)
	a := openIn(t, o.supply(t, "ca"))
	if _, _, err := a.Successor(o.given(t)); err == nil || !strings.Contains(err.Error(), "nothing would change") {
		t.Errorf("got %v", err)
	}
}

func FuzzReadChain(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
		[]byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"))
	seed := f.TempDir()
	if _, err := Open(Config{Dir: seed}); err != nil {
		f.Fatal(err)
	}
	cert, err := os.ReadFile(filepath.Join(seed, "ca.crt"))
	if err != nil {
		f.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(seed, "ca.key"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(cert, key)
	f.Add(append(cert, cert...), key)
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		chain, signer, err := Given{Cert: cert, Key: key}.check([]string{"kubernetes"}, time.Now())
		if err == nil && !fits(chain[0], signer) {
			t.Error("a key of another one is taken")
		}
	})
}
