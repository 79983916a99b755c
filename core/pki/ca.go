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
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// ca is a certificate authority: NAME.crt, readable by who may enter the
// directory, and NAME.key. While it changes there are NAME.next.crt and
// NAME.next.key, which are to take its place, then NAME.old.crt, which it took;
// NAME.cross.crt is the one that signs, signed by the one before.
type ca struct {
	commonName string
	base       string // the files' path up to NAME
	state      atomic.Pointer[caState]
}

// caState is what the files of an authority hold.
type caState struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// next and old are trusted besides; nil = there is none.
	next, old *x509.Certificate
	cross     *x509.Certificate
}

func (c *ca) file(end string) string         { return c.base + end }
func (c *ca) certFile() string               { return c.base + ".crt" }
func (c *ca) keyFile() string                { return c.base + ".key" }
func (c *ca) certificate() *x509.Certificate { return c.state.Load().cert }

// trusted are all certificates to trust, the one that signs first.
func (c *ca) trusted() []*x509.Certificate {
	s := c.state.Load()
	all := []*x509.Certificate{s.cert}
	for _, other := range []*x509.Certificate{s.next, s.old} {
		if other != nil {
			all = append(all, other)
		}
	}
	return all
}

func (c *ca) pem() []byte { return Bundle(c.trusted()...) }

// openCA reads or makes an authority. The key is written first, so that a crash
// in between leaves a key that the next start signs a certificate with.
func (a *Authority) openCA(name, commonName string) (*ca, error) {
	c := &ca{commonName: commonName, base: a.path(name)}
	return c, a.readCA(c)
}

// readCA reads what the files hold now: another process may have changed the authority.
func (a *Authority) readCA(c *ca) error {
	if err := c.finishPromotion(); err != nil {
		return err
	}
	cert, certErr := readCert(c.certFile())
	key, keyErr := readKey(c.keyFile())
	switch {
	case certErr != nil && !errors.Is(certErr, fs.ErrNotExist):
		return certErr
	case keyErr != nil && !errors.Is(keyErr, fs.ErrNotExist):
		return keyErr
	case certErr == nil && keyErr != nil:
		return fmt.Errorf("%s exists, its key %s does not: restore the key from a backup, or remove the certificate to start with a new authority (all clients must then get new credentials)", c.certFile(), c.keyFile())
	case keyErr != nil:
		var err error
		if key, err = newKeyFile(c.keyFile()); err != nil {
			return fmt.Errorf("make an authority's key: %w", err)
		}
	}
	if certErr != nil {
		var err error
		if cert, err = c.selfSign(nil, key, a.cfg.Now()); err != nil {
			return err
		}
	}
	if !fits(cert, key) {
		return fmt.Errorf("%s is not the key of %s: restore the pair from a backup", c.keyFile(), c.certFile())
	}
	s := &caState{cert: cert, key: key}
	for end, to := range map[string]**x509.Certificate{nextCert: &s.next, oldCert: &s.old, crossCert: &s.cross} {
		other, err := readCert(c.file(end))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		*to = other // nil where there is none
	}
	if s.cross != nil && !fits(s.cross, key) {
		s.cross = nil // it is of the one that is to follow
	}
	c.state.Store(s)
	return a.renewCA(c)
}

func fits(cert *x509.Certificate, key *ecdsa.PrivateKey) bool {
	pub, ok := cert.PublicKey.(*ecdsa.PublicKey)
	return ok && pub.Equal(key.Public())
}

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
func (c *ca) selfSign(before *x509.Certificate, key *ecdsa.PrivateKey, now time.Time) (*x509.Certificate, error) {
	name := c.commonName
	if before != nil {
		name = before.Subject.CommonName
	}
	cert, err := signAuthority(name, key.Public(), nil, key, now)
	if err != nil {
		return nil, err
	}
	return cert, atomicfile.Write(c.certFile(), Bundle(cert), 0o644)
}

// signAuthority makes an authority's certificate, signed by parent, or by itself where
// that is nil.
func signAuthority(name string, pub crypto.PublicKey, parent *x509.Certificate, key crypto.Signer, now time.Time) (*x509.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-backdate).UTC(),
		NotAfter:              now.Add(caLife).UTC(),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		DNSNames:              []string{name},
	}
	if parent == nil {
		parent = t
	} else if t.NotAfter.After(parent.NotAfter) {
		t.NotAfter = parent.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, key)
	if err != nil {
		return nil, fmt.Errorf("sign the authority %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back the authority %s: %w", name, err)
	}
	return cert, nil
}

// sign issues a leaf, in PEM. It never outlives the authority. Where the authority took
// another one's place, the leaf is followed by what proves it to who knows that one only.
func (c *ca) sign(r request, pub crypto.PublicKey, now time.Time) ([]byte, error) {
	t, err := r.template(now)
	if err != nil {
		return nil, err
	}
	s := c.state.Load()
	parent := s.cert
	if t.NotAfter.After(parent.NotAfter) {
		t.NotAfter = parent.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, s.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %q: %w", r.user, err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if s.cross != nil {
		text = append(text, Bundle(s.cross)...)
	}
	return text, nil
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

func readCert(file string) (*x509.Certificate, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("%s: expected a PEM block CERTIFICATE", file)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return cert, nil
}

// ReadCertificates reads the certificates (PEM) of a file, at least one.
func ReadCertificates(file string) ([]*x509.Certificate, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all, err := ParseBundle(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return all, nil
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
