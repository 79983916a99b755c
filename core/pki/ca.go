// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/wasmplane/wasmplane/core/pki/cabundle"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// ca is a certificate authority: NAME.crt, readable by who may enter the
// directory, and NAME.key. While it changes there are NAME.next.crt and
// NAME.next.key, which are to take its place, then NAME.old.crt, which it took;
// NAME.cross.crt is the one that signs, signed by the one before, with what is between that
// and its root. A file of an authority that is an intermediate has the chain up to its root.
type ca struct {
	commonName string
	base       string   // the files' path up to NAME
	hosts      []string // what it has to be able to sign for; nil = it must be its own root
	state      atomic.Pointer[caState]
}

// caState is what the files of an authority hold.
type caState struct {
	cert *x509.Certificate
	key  crypto.Signer
	// above is what is between cert and its root, and the root; nil: it is one.
	above []*x509.Certificate
	// next and old are trusted besides, each with what is above it; nil = there is none.
	next, old []*x509.Certificate
	cross     []*x509.Certificate
}

// below are the authorities that prove cert to who knows its root alone.
func (s *caState) below() []*x509.Certificate {
	if len(s.above) == 0 {
		return nil
	}
	return append([]*x509.Certificate{s.cert}, s.above[:len(s.above)-1]...)
}

// ends is when the first certificate of the chain does.
func (s *caState) ends() time.Time {
	end := s.cert.NotAfter
	for _, c := range s.above {
		if c.NotAfter.Before(end) {
			end = c.NotAfter
		}
	}
	return end
}

func (c *ca) file(end string) string         { return c.base + end }
func (c *ca) certFile() string               { return c.base + ".crt" }
func (c *ca) keyFile() string                { return c.base + ".key" }
func (c *ca) certificate() *x509.Certificate { return c.state.Load().cert }

// trusted are all certificates to trust, the one that signs first.
func (c *ca) trusted() []*x509.Certificate {
	s := c.state.Load()
	all := []*x509.Certificate{s.cert}
	for _, other := range [][]*x509.Certificate{s.next, s.old} {
		if len(other) > 0 {
			all = append(all, other[0])
		}
	}
	return all
}

// roots are trusted's roots, each once.
func (c *ca) roots() (all []*x509.Certificate) {
	s := c.state.Load()
	for _, chain := range [][]*x509.Certificate{append([]*x509.Certificate{s.cert}, s.above...), s.next, s.old} {
		if len(chain) == 0 {
			continue
		}
		if root := chain[len(chain)-1]; !slices.ContainsFunc(all, root.Equal) {
			all = append(all, root)
		}
	}
	return all
}

// supplied tells that the authority is not of our making, so that it is not for us to sign it again.
func (c *ca) supplied() bool {
	s := c.state.Load()
	ours, err := asn1.Marshal(pkix.Name{CommonName: s.cert.Subject.CommonName}.ToRDNSequence())
	return len(s.above) > 0 || err != nil || !bytes.Equal(ours, s.cert.RawSubject) ||
		!strings.HasPrefix(s.cert.Subject.CommonName, c.commonName)
}

func (c *ca) pem() []byte { return cabundle.Encode(c.trusted()...) }

// openCA reads or makes an authority. The key is written first, so that a crash
// in between leaves a key that the next start signs a certificate with.
func (a *Authority) openCA(name, commonName string, hosts []string) (*ca, error) {
	c := &ca{commonName: commonName, base: a.path(name), hosts: hosts}
	return c, a.readCA(c)
}

// readCA reads what the files hold now: another process may have changed the authority.
func (a *Authority) readCA(c *ca) error {
	if err := c.finishPromotion(); err != nil {
		return err
	}
	chain, certErr := readChain(c.certFile())
	key, keyErr := readSigner(c.keyFile())
	switch {
	case certErr != nil && !errors.Is(certErr, fs.ErrNotExist):
		return certErr
	case keyErr != nil && !errors.Is(keyErr, fs.ErrNotExist):
		return keyErr
	case certErr == nil && keyErr != nil:
		return fmt.Errorf("%s exists, its key %s does not: restore the key from a backup, or remove the certificate to start with a new authority (all clients must then get new credentials)", c.certFile(), c.keyFile())
	case keyErr != nil:
		made, err := newKeyFile(c.keyFile())
		if err != nil {
			return fmt.Errorf("make an authority's key: %w", err)
		}
		key = made
	}
	if certErr != nil {
		if _, ours := key.(*ecdsa.PrivateKey); !ours {
			return fmt.Errorf("%s exists, its certificate %s does not: put it beside, with those above it up to the root if it is an intermediate", c.keyFile(), c.certFile())
		}
		cert, err := c.selfSign(nil, key, a.cfg.Now())
		if err != nil {
			return err
		}
		chain = []*x509.Certificate{cert}
	}
	if !fits(chain[0], key) {
		return fmt.Errorf("%s is not the key of %s: restore the pair from a backup, or put the right key there", c.keyFile(), c.certFile())
	}
	s := &caState{cert: chain[0], key: key, above: chain[1:]}
	for end, to := range map[string]*[]*x509.Certificate{nextCert: &s.next, oldCert: &s.old, crossCert: &s.cross} {
		read := readChain
		if end == crossCert {
			read = cabundle.Read
		}
		other, err := read(c.file(end))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		*to = other // nil where there is none
	}
	if len(s.cross) > 0 && !fits(s.cross[0], key) {
		s.cross = nil // it is of the one that is to follow
	}
	before := c.state.Swap(s)
	if c.supplied() {
		if err := a.checkSupplied(c); err != nil {
			c.state.Store(before) // what was good goes on signing
			return err
		}
		return nil
	}
	return a.renewCA(c)
}

// checkSupplied says what is wrong with an authority that is not of our making.
func (a *Authority) checkSupplied(c *ca) error {
	s := c.state.Load()
	if c.hosts == nil && len(s.above) > 0 {
		return fmt.Errorf("%s: the servers' stores accept everybody whom the root %q vouches for: use a root of its own, or remove %s and its key, and one is made",
			c.certFile(), s.above[len(s.above)-1].Subject, c.certFile())
	}
	if err := mayIssue(append([]*x509.Certificate{s.cert}, s.above...), s.key, c.hosts, a.cfg.Now()); err != nil {
		return fmt.Errorf("%s: %w", c.certFile(), err)
	}
	if ends := s.ends(); ends.Sub(a.cfg.Now()) < warnSupplied {
		a.cfg.Log.Warn("an authority that was supplied ends soon and is not renewed here: put a later certificate for the same key in its place, or change it (wasmplane certs rotate-ca --cert FILE --key FILE)",
			"file", c.certFile(), "ends", ends)
	}
	return nil
}

// warnSupplied is how long before the end of an authority that was supplied the log speaks of it.
const warnSupplied = 90 * 24 * time.Hour

// renewCA signs an old authority again with its own key: leaves stay valid, and
// clients that hold the old certificate have a third of its life to get the new one.
func (a *Authority) renewCA(c *ca) error {
	if !needsRenewal(c.certificate(), a.cfg.Now()) {
		return nil
	}
	s := *c.state.Load()
	var err error
	if s.cert, err = c.selfSign(s.cert, s.key, a.cfg.Now()); err != nil {
		return err
	}
	c.state.Store(&s)
	a.cfg.Log.Warn("renewed a certificate authority; hand its certificate out to clients again", "file", c.certFile(),
		"until", c.certificate().NotAfter)
	return nil
}

// selfSign writes the authority's certificate. One that it had before keeps its name.
func (c *ca) selfSign(before *x509.Certificate, key crypto.Signer, now time.Time) (*x509.Certificate, error) {
	name := c.commonName
	var keyID []byte
	if before != nil {
		name, keyID = before.Subject.CommonName, before.SubjectKeyId // what it has signed names both
	}
	cert, err := signAuthority(pkix.Name{CommonName: name}, keyID, key.Public(), nil, key, now)
	if err != nil {
		return nil, err
	}
	return cert, atomicfile.Write(c.certFile(), cabundle.Encode(cert), 0o644)
}

// signAuthority makes an authority's certificate, signed by parent, or by itself where
// that is nil. keyID of nil is made from the key.
func signAuthority(name pkix.Name, keyID []byte, pub crypto.PublicKey, parent *x509.Certificate, key crypto.Signer,
	now time.Time,
) (*x509.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               name,
		SubjectKeyId:          keyID,
		NotBefore:             now.Add(-backdate).UTC(),
		NotAfter:              now.Add(caLife).UTC(),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		DNSNames:              []string{name.CommonName},
	}
	if parent == nil {
		parent = t
	} else if t.NotAfter.After(parent.NotAfter) {
		t.NotAfter = parent.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, key)
	if err != nil {
		return nil, fmt.Errorf("sign the authority %s: %w", name.CommonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back the authority %s: %w", name.CommonName, err)
	}
	return cert, nil
}

// sign issues a leaf, in PEM. It never outlives the authority. It is followed by what proves it
// to who knows the authority's root only, and, where the authority took another one's place,
// to who knows that one only.
func (c *ca) sign(r request, pub crypto.PublicKey, now time.Time) ([]byte, error) {
	t, err := r.template(now)
	if err != nil {
		return nil, err
	}
	s := c.state.Load()
	parent := s.cert
	if end := s.ends(); t.NotAfter.After(end) {
		t.NotAfter = end
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, s.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %q: %w", r.user, err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return append(text, cabundle.Encode(s.proof()...)...), nil
}

// proof is what follows each certificate that is signed.
func (s *caState) proof() []*x509.Certificate { return append(s.below(), s.cross...) }

// provenBy tells that the chain to the authority's root is among what follows a certificate.
func (s *caState) provenBy(rest [][]byte) bool {
	for _, c := range s.below() {
		if !slices.ContainsFunc(rest, func(der []byte) bool { return bytes.Equal(der, c.Raw) }) {
			return false
		}
	}
	return true
}

// openServiceAccountKey reads or makes the key that signs tokens. A lost key
// would make every token in every pod invalid, so a broken file is an error.
func (a *Authority) openServiceAccountKey() (*ecdsa.PrivateKey, error) {
	file := a.path("sa.key")
	key, err := readKey(file)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = newKeyFile(file)
	}
	if err != nil {
		return nil, fmt.Errorf("service account key: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("encode the public service account key: %w", err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	if old, err := os.ReadFile(a.path("sa.pub")); err == nil && bytes.Equal(old, public) {
		return key, nil
	}
	return key, atomicfile.Write(a.path("sa.pub"), public, 0o644)
}

func newKeyFile(file string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate a key: %w", err)
	}
	data, err := keyPEM(key)
	if err != nil {
		return nil, err
	}
	return key, atomicfile.Write(file, data, 0o600)
}

func readKey(file string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s: expected a PEM block with an ECDSA key", file)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		return nil, fmt.Errorf("protect the key: %w", err)
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: expected an ECDSA key: %w", file, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s: expected an ECDSA key, found %T", file, parsed)
	}
	return key, nil
}
