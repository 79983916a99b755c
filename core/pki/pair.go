// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// Pair is a certificate with its key, in one PEM file. Its content changes when
// it is renewed; the file's path does not.
type Pair struct {
	name      string
	file      string
	request   request
	authority *ca
	current   atomic.Pointer[content]
}

type content struct {
	pem []byte
	tls *tls.Certificate
}

// File is the path of the PEM file; it serves as certificate file and as key file.
func (p *Pair) File() string { return p.file }

// PEM is the certificate and the key. The caller must not change it.
func (p *Pair) PEM() []byte { return p.current.Load().pem }

// CertPEM is the certificate alone.
func (p *Pair) CertPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.leaf().Raw})
}

// KeyPEM is the key alone.
func (p *Pair) KeyPEM() ([]byte, error) { return keyPEM(p.Certificate().PrivateKey) }

// Certificate is the pair as TLS wants it.
func (p *Pair) Certificate() *tls.Certificate { return p.current.Load().tls }

// GetClientCertificate is for tls.Config, so that a client uses the renewed pair too.
func (p *Pair) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return p.Certificate(), nil
}

func (p *Pair) leaf() *x509.Certificate { return p.Certificate().Leaf }

// load reads the file and says why it will not do.
func (p *Pair) load(now time.Time) error {
	data, err := os.ReadFile(p.file)
	if err != nil {
		return err
	}
	c, err := parsePair(data)
	if err != nil {
		return err
	}
	if err := p.request.satisfiedBy(c.tls.Leaf); err != nil {
		return err
	}
	if err := c.tls.Leaf.CheckSignatureFrom(p.authority.certificate()); err != nil {
		return fmt.Errorf("it was signed by another authority: %w", err)
	}
	if !p.authority.state.Load().provenBy(c.tls.Certificate[1:]) {
		return errors.New("it is not followed by the chain of the authority that signed it")
	}
	if needsRenewal(c.tls.Leaf, now) {
		return fmt.Errorf("it ends at %s", c.tls.Leaf.NotAfter.Format(time.RFC3339))
	}
	if err := os.Chmod(p.file, 0o600); err != nil {
		return err
	}
	if before := p.current.Load(); before == nil || !bytes.Equal(before.pem, c.pem) {
		p.current.Store(c) // who compares pointers sees a change where there is one
	}
	return nil
}

// parsePair reads one certificate and its key from PEM.
func parsePair(data []byte) (*content, error) {
	cert, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, fmt.Errorf("read the pair: %w", err)
	}
	if cert.Leaf == nil {
		return nil, errors.New("read the pair: no certificate in it")
	}
	return &content{pem: data, tls: &cert}, nil
}

// needsRenewal is true in the last third of the certificate's life, and when
// its life has not begun (a clock that was set back).
func needsRenewal(c *x509.Certificate, now time.Time) bool {
	life := c.NotAfter.Sub(c.NotBefore)
	return now.Before(c.NotBefore) || c.NotAfter.Sub(now) < life/3
}

// issue makes a new key and certificate and puts both in place at once.
func (p *Pair) issue(now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("generate a key: %w", err)
	}
	chain, err := p.authority.sign(p.request, key.Public(), now)
	if err != nil {
		return err
	}
	secret, err := keyPEM(key)
	if err != nil {
		return err
	}
	data := append(chain, secret...)
	c, err := parsePair(data)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(p.file, data, 0o600); err != nil {
		return err
	}
	p.current.Store(c)
	return nil
}

// request is what a certificate is to say.
type request struct {
	user   string
	groups []string
	hosts  []string
	usages []x509.ExtKeyUsage
	// begins at once: see the package core/auth/removal. Others cover clocks that run behind.
	atOnce bool
}

func (r request) equal(o request) bool {
	return r.user == o.user && slices.Equal(r.usages, o.usages) && slices.Equal(r.groups, o.groups) && slices.Equal(r.hosts, o.hosts)
}

// satisfiedBy says what certificate c lacks. More hosts than asked for are no
// fault: the operator may have added some, and clients may be using them.
func (r request) satisfiedBy(c *x509.Certificate) error {
	if c.Subject.CommonName != r.user {
		return fmt.Errorf("it is for user %q, not %q", c.Subject.CommonName, r.user)
	}
	have, want := slices.Sorted(slices.Values(c.Subject.Organization)), slices.Sorted(slices.Values(r.groups))
	if !slices.Equal(have, want) {
		return fmt.Errorf("it is for groups %q, not %q", have, want)
	}
	for _, u := range r.usages {
		if !slices.Contains(c.ExtKeyUsage, u) {
			return errors.New("it is for another usage")
		}
	}
	for _, h := range r.hosts {
		if err := c.VerifyHostname(h); err != nil && !slices.Contains(c.DNSNames, h) {
			return fmt.Errorf("it lacks the host %q", h)
		}
	}
	return nil
}

// template is the certificate before it is signed.
func (r request) template(now time.Time) (*x509.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: r.user, Organization: r.groups},
		NotBefore:             now.Add(-backdate).UTC(),
		NotAfter:              now.Add(leafLife).UTC(),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           r.usages,
		BasicConstraintsValid: true,
	}
	if r.atOnce {
		t.NotBefore = now.UTC()
	}
	for _, h := range r.hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if !slices.Contains(t.DNSNames, h) {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	return t, nil
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

func keyPEM(key crypto.PrivateKey) ([]byte, error) {
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		der, err := x509.MarshalECPrivateKey(k)
		if err != nil {
			return nil, fmt.Errorf("encode the key: %w", err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
	case *rsa.PrivateKey:
		return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k)}), nil
	}
	return nil, fmt.Errorf("key of type %T, expected ECDSA or RSA", key)
}

// WithAuthority makes a configuration of ServerTLS send the authority's certificate
// behind the server's own: a machine that joins knows the authority by its pin only, and
// has it from the handshake.
func WithAuthority(c *tls.Config, authority func() *x509.Certificate) *tls.Config {
	c = c.Clone()
	leaf := c.GetCertificate
	c.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := leaf(hello)
		if err != nil {
			return nil, err
		}
		chain := *cert
		// Right behind the leaf: what else is in the chain is for those who know an earlier one.
		// An intermediate is there already.
		if own := authority().Raw; len(cert.Certificate) < 2 || !bytes.Equal(cert.Certificate[1], own) {
			chain.Certificate = slices.Insert(slices.Clone(cert.Certificate), 1, own)
		}
		return &chain, nil
	}
	return c
}
