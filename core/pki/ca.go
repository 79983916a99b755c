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
// directory, and NAME.key.
type ca struct {
	commonName string
	certFile   string
	keyFile    string
	key        *ecdsa.PrivateKey
	cert       atomic.Pointer[x509.Certificate]
}

func (c *ca) certificate() *x509.Certificate { return c.cert.Load() }

func (c *ca) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.certificate().Raw})
}

// openCA reads or makes an authority. The key is written first, so that a crash
// in between leaves a key that the next start signs a certificate with.
func (a *Authority) openCA(name, commonName string) (*ca, error) {
	c := &ca{commonName: commonName, certFile: a.path(name + ".crt"), keyFile: a.path(name + ".key")}
	cert, certErr := readCert(c.certFile)
	key, keyErr := readKey(c.keyFile)
	switch {
	case certErr != nil && !errors.Is(certErr, fs.ErrNotExist):
		return nil, certErr
	case keyErr != nil && !errors.Is(keyErr, fs.ErrNotExist):
		return nil, keyErr
	case certErr == nil && keyErr != nil:
		return nil, fmt.Errorf("%s exists, its key %s does not: restore the key from a backup, or remove the certificate to start with a new authority (all clients must then get new credentials)", c.certFile, c.keyFile)
	case keyErr != nil:
		var err error
		if key, err = newKeyFile(c.keyFile); err != nil {
			return nil, fmt.Errorf("make an authority's key: %w", err)
		}
	}
	c.key = key
	if certErr != nil {
		return c, c.selfSign(a.cfg.Now())
	}
	if pub, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok || !pub.Equal(key.Public()) {
		return nil, fmt.Errorf("%s is not the key of %s: restore the pair from a backup", c.keyFile, c.certFile)
	}
	c.cert.Store(cert)
	return c, a.renewCA(c)
}

// renewCA signs an old authority again with its own key: leaves stay valid, and
// clients that hold the old certificate have a third of its life to get the new one.
func (a *Authority) renewCA(c *ca) error {
	if !needsRenewal(c.certificate(), a.cfg.Now()) {
		return nil
	}
	if err := c.selfSign(a.cfg.Now()); err != nil {
		return err
	}
	a.cfg.Log.Warn("renewed a certificate authority; hand its certificate out to clients again", "file", c.certFile,
		"until", c.certificate().NotAfter)
	return nil
}

func (c *ca) selfSign(now time.Time) error {
	serial, err := newSerial()
	if err != nil {
		return err
	}
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: c.commonName},
		NotBefore:             now.Add(-backdate).UTC(),
		NotAfter:              now.Add(caLife).UTC(),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		DNSNames:              []string{c.commonName},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, c.key.Public(), c.key)
	if err != nil {
		return fmt.Errorf("sign the authority %s: %w", c.commonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("read back the authority %s: %w", c.commonName, err)
	}
	if err := atomicfile.Write(c.certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		return err
	}
	c.cert.Store(cert)
	return nil
}

// sign issues a leaf. It never outlives the authority.
func (c *ca) sign(r request, pub crypto.PublicKey, now time.Time) ([]byte, error) {
	t, err := r.template(now)
	if err != nil {
		return nil, err
	}
	parent := c.certificate()
	if t.NotAfter.After(parent.NotAfter) {
		t.NotAfter = parent.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, c.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %q: %w", r.user, err)
	}
	return der, nil
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
	var all []*x509.Certificate
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, cert)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: expected at least one PEM block CERTIFICATE", file)
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
