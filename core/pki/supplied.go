// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/core/pki/cabundle"
)

// An authority may be an operator's own: a root (RSA or ECDSA), or an intermediate with
// the chain up to its root. Three rules follow from an intermediate:
//
//   - Who checks clients' certificates trusts the intermediate and not the root: whatever else
//     the root signs has nothing to say here (trusted).
//   - Who checks servers' certificates may know the root alone, as most libraries demand
//     (roots); what is signed is followed by the chain below it (below).
//   - It is never signed again here.

// weakest RSA key of an authority, in bits, as the CA/Browser Forum's baseline requirements have it.
const weakest = 2048

// readChain reads an authority's certificate and those above it, up to its root.
func readChain(file string) ([]*x509.Certificate, error) {
	all, err := cabundle.Read(file)
	if err != nil {
		return nil, err
	}
	if all, err = inOrder(all); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return all, nil
}

// inOrder puts those above the first certificate in their order, up to the root.
func inOrder(all []*x509.Certificate) ([]*x509.Certificate, error) {
	chain, rest := all[:1:1], slices.Clone(all[1:])
	for !isRoot(chain[len(chain)-1]) {
		below := chain[len(chain)-1]
		i := slices.IndexFunc(rest, func(c *x509.Certificate) bool {
			return bytes.Equal(c.RawSubject, below.RawIssuer) && signed(below, c)
		})
		if i < 0 {
			return nil, fmt.Errorf("the authority %q is an intermediate, and the certificate of its issuer %q is missing: append the certificates above it up to the root, which clients have to trust",
				below.Subject, below.Issuer)
		}
		chain = append(chain, rest[i])
		rest = slices.Delete(rest, i, i+1)
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("the certificate %q is not above the first one, which is to sign: leave it out, or put the authority that signs first", rest[0].Subject)
	}
	return chain, nil
}

func isRoot(c *x509.Certificate) bool {
	return bytes.Equal(c.RawSubject, c.RawIssuer) && signed(c, c)
}

// signed tells that parent's key made c's signature. What parent may sign is looked at elsewhere.
func signed(c, parent *x509.Certificate) bool {
	return parent.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) == nil
}

// publicKey is what all public keys of the standard library have.
type publicKey interface {
	Equal(crypto.PublicKey) bool
}

func fits(cert *x509.Certificate, key crypto.Signer) bool {
	pub, ok := cert.PublicKey.(publicKey)
	return ok && pub.Equal(key.Public())
}

// readSigner reads the key of an authority.
func readSigner(file string) (crypto.Signer, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	key, err := parseSigner(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		return nil, fmt.Errorf("protect the key: %w", err)
	}
	return key, nil
}

const whichKeys = "expected an RSA key of at least 2048 bits or an ECDSA key of the curve P-256, P-384 or P-521, in PEM"

func parseSigner(data []byte) (crypto.Signer, error) {
	block, rest := pem.Decode(data)
	for block != nil && !strings.HasSuffix(block.Type, "PRIVATE KEY") { // `openssl ecparam` writes the curve first
		block, rest = pem.Decode(rest)
	}
	switch {
	case block == nil:
		return nil, errors.New(whichKeys)
	case strings.Contains(block.Type, "ENCRYPTED") || block.Headers["DEK-Info"] != "":
		return nil, errors.New("the key is encrypted by a passphrase, which nobody types when a server starts: decrypt it (openssl pkey -in ca.key -out plain.key); the folder is readable by its owner alone")
	}
	key, err := parseKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", whichKeys, err)
	}
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		if k.Curve == elliptic.P224() {
			return nil, errors.New(whichKeys + ", found the curve P-224")
		}
		return k, nil
	case *rsa.PrivateKey:
		if k.N.BitLen() < weakest {
			return nil, fmt.Errorf("%s, found RSA of %d bits", whichKeys, k.N.BitLen())
		}
		return k, nil
	}
	return nil, fmt.Errorf("%s, found %T", whichKeys, key)
}

func parseKey(der []byte) (any, error) {
	if key, err := x509.ParseECPrivateKey(der); err == nil {
		return key, nil
	}
	if key, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return key, nil
	}
	return x509.ParsePKCS8PrivateKey(der)
}

// mayIssue says why an authority with this chain cannot sign certificates that others accept,
// for servers called hosts and for clients. Certificates of our own making are not its business.
func mayIssue(chain []*x509.Certificate, key crypto.Signer, hosts []string, now time.Time) error {
	for i, c := range chain {
		if err := maySign(c, i, now); err != nil {
			return err
		}
	}
	return proves(chain, key, hosts, now)
}

// maySign looks at one certificate of a chain, which has below authorities under it.
func maySign(c *x509.Certificate, below int, now time.Time) error {
	const instead = "use one that was made for signing (basicConstraints CA:TRUE, keyUsage keyCertSign)"
	switch {
	case !c.BasicConstraintsValid || !c.IsCA:
		return fmt.Errorf("%q is not an authority: it lacks CA:TRUE; %s", c.Subject, instead)
	case c.KeyUsage&x509.KeyUsageCertSign == 0:
		return fmt.Errorf("%q may not sign certificates: it lacks the key usage keyCertSign; %s", c.Subject, instead)
	case now.After(c.NotAfter):
		return fmt.Errorf("%q has expired on %s, and this machine's clock says %s: put a certificate in its place that holds, for the same key, or set the clock",
			c.Subject, c.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case now.Before(c.NotBefore):
		return fmt.Errorf("%q holds from %s on, and this machine's clock says %s: set the clock (timedatectl set-ntp true), or wait",
			c.Subject, c.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	if limit, ok := pathLength(c); ok && below > limit {
		return fmt.Errorf("%q allows %d authorities below it (path length), and there are %d: have the one that signs issued by another authority",
			c.Subject, limit, below)
	}
	return nil
}

// pathLength is how many authorities may be below c; ok: it is limited.
func pathLength(c *x509.Certificate) (limit int, ok bool) {
	return c.MaxPathLen, c.MaxPathLen > 0 || c.MaxPathLen == 0 && c.MaxPathLenZero
}

// proves signs certificates for a key that nobody keeps, and has the standard library
// verify them from the root: extended key usages and name constraints of the whole chain show here.
func proves(chain []*x509.Certificate, key crypto.Signer, hosts []string, now time.Time) error {
	holder, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("generate a key: %w", err)
	}
	root, between := chain[len(chain)-1], chain[:len(chain)-1]
	for _, r := range []request{
		{user: "kube-apiserver", hosts: hosts, usages: serving},
		{user: Admin().User, groups: Admin().Groups, usages: calling},
	} {
		t, err := r.template(now)
		if err != nil {
			return err
		}
		der, err := x509.CreateCertificate(rand.Reader, t, chain[0], holder.Public(), key)
		if err != nil {
			return fmt.Errorf("%q cannot sign: %w", chain[0].Subject, err)
		}
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("read back what %q signed: %w", chain[0].Subject, err)
		}
		_, err = leaf.Verify(x509.VerifyOptions{
			Roots: cabundle.Pool(root), Intermediates: cabundle.Pool(between...), KeyUsages: r.usages,
			CurrentTime: now,
		})
		if err != nil {
			return fmt.Errorf("clients that trust %q would not accept what %q signs for %s %v (extended key usages and name constraints of the whole chain have to allow servers and clients): %w",
				root.Subject, chain[0].Subject, r.user, hosts, err)
		}
	}
	return nil
}

// Given is an authority that an operator supplies: its certificate, followed by those above it, and its key.
type Given struct {
	Cert, Key []byte
}

// check reads what was given, and says why it will not do.
func (g Given) check(hosts []string, now time.Time) ([]*x509.Certificate, crypto.Signer, error) {
	all, err := cabundle.Parse(g.Cert)
	if err != nil {
		return nil, nil, fmt.Errorf("the new authority's certificate: %w", err)
	}
	chain, err := inOrder(all)
	if err != nil {
		return nil, nil, err
	}
	key, err := parseSigner(g.Key)
	if err != nil {
		return nil, nil, fmt.Errorf("the new authority's key: %w", err)
	}
	if !fits(chain[0], key) {
		return nil, nil, fmt.Errorf("the key is not that of %q", chain[0].Subject)
	}
	return chain, key, mayIssue(chain, key, hosts, now)
}
