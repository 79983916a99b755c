// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// StoreClient is the name of the certificate by which a light server uses the stores of other servers. It is for a client
// alone, and signed by a server that keeps the store: a light server does not have that authority's key.
const StoreClient = "etcd-client"

// storeClientsGroup is for people who look at such a certificate.
const storeClientsGroup = "wasmplane:light-servers"

// StoreClientRequest is a new key of a light server, and what it asks for.
type StoreClientRequest struct {
	key *ecdsa.PrivateKey
	// CSR is the request (PKCS #10, DER).
	CSR []byte
}

// NewStoreClientRequest makes a key for the server of that name.
func NewStoreClientRequest(name string) (*StoreClientRequest, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate a key: %w", err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: name, Organization: []string{storeClientsGroup}},
	}, key)
	if err != nil {
		return nil, fmt.Errorf("ask for the certificate of a light server: %w", err)
	}
	return &StoreClientRequest{key: key, CSR: csr}, nil
}

// Keep puts the certificate (PEM) that was signed for the request into a folder of keys, with its key.
func (r *StoreClientRequest) Keep(dir string, cert []byte) error {
	secret, err := keyPEM(r.key)
	if err != nil {
		return err
	}
	pair := append(bytes.Clone(cert), secret...)
	c, err := parsePair(pair)
	if err != nil {
		return fmt.Errorf("the certificate that was signed for this server: %w", err)
	}
	authority, err := readChain(filepath.Join(dir, "etcd-ca.crt"))
	if err != nil {
		return err
	}
	if err := c.tls.Leaf.CheckSignatureFrom(authority[0]); err != nil {
		return fmt.Errorf("the certificate that was signed for this server is of another authority: %w", err)
	}
	return atomicfile.Write(StoreClientFile(dir), pair, 0o600)
}

// StoreClientFile is the certificate with its key in a folder of keys.
func StoreClientFile(dir string) string { return filepath.Join(dir, StoreClient+".pem") }

// StoreClientDue tells whether the certificate in a folder of keys is to be signed again.
func StoreClientDue(dir string, now time.Time) (bool, error) {
	data, err := os.ReadFile(StoreClientFile(dir))
	if err != nil {
		return false, fmt.Errorf("read this server's certificate for the store: %w", err)
	}
	c, err := parsePair(data)
	if err != nil {
		return false, fmt.Errorf("%s: %w", StoreClientFile(dir), err)
	}
	return needsRenewal(c.tls.Leaf, now), nil
}

// SignStoreClient signs what the light server of that name asks for. The certificate (PEM) begins at once, so that the removal of
// an earlier server of the name does not count for it (core/auth/removal).
func (a *Authority) SignStoreClient(name string, csr []byte) ([]byte, error) {
	asked, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, fmt.Errorf("the request for a certificate cannot be read: %w", err)
	}
	if err := asked.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the request for a certificate is not signed by its own key: %w", err)
	}
	if asked.Subject.CommonName != name {
		return nil, fmt.Errorf("the request for a certificate is for %q, not %q", asked.Subject.CommonName, name)
	}
	if _, ok := asked.PublicKey.(*ecdsa.PublicKey); !ok {
		return nil, errors.New("the request for a certificate is for a key that is not ECDSA")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.openEtcdCA(); err != nil {
		return nil, err
	}
	r := request{user: name, groups: []string{storeClientsGroup}, usages: calling, atOnce: true}
	signed, err := a.etcd.sign(r, asked.PublicKey, a.cfg.Now())
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(signed)
	if block == nil {
		return nil, errors.New("the certificate that was signed has no PEM")
	}
	return pem.EncodeToMemory(block), nil
}
