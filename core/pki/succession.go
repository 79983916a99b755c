// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/core/pki/cabundle"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// How the files of an authority end that is there besides the one that signs.
const (
	nextCert  = ".next.crt"
	nextKey   = ".next.key"
	oldCert   = ".old.crt"
	crossCert = ".cross.crt"
)

// Step is how far the change of the authorities has come. Each is to be taken by all
// servers before the next: what one server gives out then, all others accept.
type Step string

// The steps in their order. Settled is before the first and after the last.
const (
	Settled Step = ""
	// Trusting: the authority that is to follow is trusted besides.
	Trusting Step = "trust"
	// Signing: it signs, and the old one is trusted besides.
	Signing Step = "sign"
	// Dropping: the old one is trusted no more.
	Dropping Step = "drop"
)

// ErrNotGiven is the error where the folder has no successor yet, and none was given.
var ErrNotGiven = errors.New("the new authority was not given")

// Successor are the authorities that are to follow, in PEM, with their keys: those of
// the cluster and of authenticating proxies.
type Successor struct {
	Cluster, FrontProxy Heir
}

// Heir is one authority that is to follow: its certificate with those above it up to its root,
// and its key. Cross is its certificate signed by the one before, with what is above that, by
// which those who know only that one's root accept what it signs; empty where they do anyway,
// or where the one before may have no authority below it.
type Heir struct {
	Cert, Key, Cross []byte
}

// Successor makes new authorities, or takes the one that was given for the cluster. Nothing is
// kept of them here.
func (a *Authority) Successor(given *Given) (s Successor, to string, err error) {
	now := a.cfg.Now()
	if s.Cluster, to, err = a.cluster.heir(given, now); err != nil {
		return s, "", err
	}
	s.FrontProxy, _, err = a.frontProxy.heir(nil, now)
	return s, to, err
}

// Supplied tells that the cluster's authority was not made here.
func (a *Authority) Supplied() bool { return a.cluster.supplied() }

func (c *ca) heir(given *Given, now time.Time) (h Heir, pin string, err error) {
	chain, key, err := c.newcomer(given, now)
	if err != nil {
		return h, "", err
	}
	cross, err := c.cross(chain, key, now)
	if err != nil {
		return h, "", err
	}
	h = Heir{Cert: cabundle.Encode(chain...), Cross: cabundle.Encode(cross...)}
	h.Key, err = keyPEM(key)
	return h, cabundle.Pin(chain[0]), err
}

// newcomer is the authority that was given, or a new one. That has a name of its own: some
// libraries look for an issuer by its name alone.
func (c *ca) newcomer(given *Given, now time.Time) ([]*x509.Certificate, crypto.Signer, error) {
	if given != nil {
		chain, key, err := given.check(c.hosts, now)
		if err == nil && cabundle.Pin(chain[0]) == cabundle.Pin(c.certificate()) {
			err = errors.New("the new authority has the key of the present one: nothing would change; to put a later certificate for the same key in place, write it to " + c.certFile() + " on all servers")
		}
		return chain, key, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate a key: %w", err)
	}
	name := c.commonName + "-" + now.UTC().Format("20060102150405")
	cert, err := signAuthority(pkix.Name{CommonName: name}, nil, key.Public(), nil, key, now)
	return []*x509.Certificate{cert}, key, err
}

// cross has the present authority sign a new one.
func (c *ca) cross(chain []*x509.Certificate, key crypto.Signer, now time.Time) ([]*x509.Certificate, error) {
	old := c.state.Load()
	root := old.cert
	if len(old.above) > 0 {
		root = old.above[len(old.above)-1]
	}
	if chain[len(chain)-1].Equal(root) {
		return nil, nil
	}
	own, err := signAuthority(chain[0].Subject, chain[0].SubjectKeyId, chain[0].PublicKey, old.cert, old.key, now)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(own.RawSubject, chain[0].RawSubject) {
		return nil, nil // its name is encoded in another way than ours would be
	}
	whole := append([]*x509.Certificate{own}, old.below()...)
	if proves(append(slices.Clone(whole), root), key, nil, now) != nil {
		return nil, nil //nolint:nilerr // a path length of the present one forbids it; what changes in steps does without
	}
	return whole, nil
}

// Follow brings this folder to a step of the change to the authority whose pin is to,
// whatever it has done of it before. s is needed where the folder does not have the
// successor yet. changed: certificates are others now, or others are trusted.
func (a *Authority) Follow(step Step, to string, s *Successor) (changed bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	err = a.locked(func() error {
		before := a.Trusts()
		if err := a.follow(step, to, s); err != nil {
			return err
		}
		if changed = a.Trusts() != before; !changed {
			return nil
		}
		// Other processes that have the folder open, and pairs that none has, go on with it too.
		if err := a.reissue(); err != nil {
			return err
		}
		note := a.cfg.Now().UTC().Format(time.RFC3339Nano) + " authority " + string(step) + "\n"
		return atomicfile.Write(a.path(renewedFile), []byte(note), 0o600)
	})
	return changed, err
}

// Trusts says in one line which authorities are trusted, by their pins, the one that signs first.
func (a *Authority) Trusts() string { return Pins(a.TrustedCAs()) }

// Pins are the pins of certificates in one line.
func Pins(certs []*x509.Certificate) string {
	var pins []string
	for _, c := range certs {
		pins = append(pins, cabundle.Pin(c))
	}
	return strings.Join(pins, " ")
}

func (a *Authority) follow(step Step, to string, s *Successor) error {
	both := []*ca{a.cluster, a.frontProxy}
	own := a.cluster.state.Load()
	promoted := cabundle.Pin(own.cert) == to
	waiting := len(own.next) > 0 && cabundle.Pin(own.next[0]) == to
	switch step {
	case Trusting:
		if promoted || waiting {
			return nil
		}
		if s == nil {
			return ErrNotGiven
		}
		// The cluster's comes last: it tells that both are there.
		if err := a.install(a.frontProxy, s.FrontProxy); err != nil {
			return err
		}
		return a.install(a.cluster, s.Cluster)
	case Signing, Dropping:
		if !promoted && !waiting {
			return fmt.Errorf("the cluster has changed to the authority %s, which this server was never given: it was away then; run `wasmplane down --purge --force` here, and join again with a new token", to)
		}
		// The cluster's comes last: it tells that both have changed.
		for _, c := range []*ca{a.frontProxy, a.cluster} {
			if err := a.promote(c); err != nil {
				return err
			}
		}
		if step == Signing {
			return nil
		}
	default: // what was begun, if anything was, is taken back
	}
	for _, c := range both {
		if err := a.forget(c); err != nil {
			return err
		}
	}
	return nil
}

// install keeps a successor. Its certificate comes last: without it, there is none.
func (a *Authority) install(c *ca, h Heir) error {
	if len(h.Cross) == 0 {
		if err := c.remove(crossCert); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		end  string
		data []byte
		mode os.FileMode
	}{{nextKey, h.Key, 0o600}, {crossCert, h.Cross, 0o644}, {nextCert, h.Cert, 0o644}} {
		if len(f.data) == 0 {
			continue
		}
		if err := atomicfile.Write(c.file(f.end), f.data, f.mode); err != nil {
			return err
		}
	}
	return a.readCA(c)
}

// promote puts the successor in the authority's place. The old key is gone then: nothing
// is signed by it any more.
func (a *Authority) promote(c *ca) error {
	s := c.state.Load()
	if s.next == nil {
		return nil
	}
	key, err := readSigner(c.file(nextKey))
	if err != nil {
		return fmt.Errorf("the authority that is to follow: %w", err)
	}
	data, err := keyPEM(key)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(c.file(oldCert), cabundle.Encode(append([]*x509.Certificate{s.cert}, s.above...)...), 0o644); err != nil {
		return err
	}
	if err := atomicfile.Write(c.keyFile(), data, 0o600); err != nil {
		return err
	}
	return a.readCA(c) // finishes what a crash here would have left
}

// finishPromotion carries on after the new key was put in place.
func (c *ca) finishPromotion() error {
	next, err := readChain(c.file(nextCert))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	key, err := readSigner(c.keyFile())
	if err != nil || !fits(next[0], key) {
		return nil //nolint:nilerr // it still waits; who reads the key says what is wrong with it
	}
	if err := atomicfile.Write(c.certFile(), cabundle.Encode(next...), 0o644); err != nil {
		return err
	}
	return c.remove(nextKey, nextCert)
}

// forget trusts nobody but who signs.
func (a *Authority) forget(c *ca) error {
	s := c.state.Load()
	if s.next == nil && s.old == nil {
		return nil
	}
	if err := c.remove(oldCert, nextKey, nextCert); err != nil {
		return err
	}
	return a.readCA(c)
}

func (c *ca) remove(ends ...string) error {
	for _, end := range ends {
		if err := os.Remove(c.file(end)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove a certificate that is not used any more: %w", err)
		}
	}
	return nil
}

// reissue has the authority that signs now sign everything that lies in the folder.
func (a *Authority) reissue() error {
	var errs []error
	for _, p := range a.pairs {
		errs = append(errs, a.ensure(p))
	}
	files, err := filepath.Glob(a.path("*.pem"))
	errs = append(errs, err)
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".pem")
		if _, ours := a.pairs[name]; ours {
			continue
		}
		p, err := existing(a.cfg.Dir, name)
		if err != nil {
			a.cfg.Log.Warn("a certificate stays as it is", "file", f, "because", err)
			continue
		}
		if p.leaf().CheckSignatureFrom(p.authority.certificate()) == nil {
			continue
		}
		errs = append(errs, p.issue(a.cfg.Now()))
	}
	return errors.Join(errs...)
}

// sealing keeps the derived key apart from every other use of the same secrets.
const sealing = "wasmplane change of authority, version 1"

// cipher is for what servers of one cluster alone may read: it takes the keys that all
// of them have and nobody else, the authority's that signs and that of service accounts.
func (a *Authority) cipher() (cipher.AEAD, error) {
	var secret []byte
	for _, k := range []crypto.Signer{a.cluster.state.Load().key, a.saKey} {
		b, err := keyBytes(k)
		if err != nil {
			return nil, err
		}
		secret = append(secret, b...)
	}
	key, err := hkdf.Key(sha256.New, secret, nil, sealing, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// keyBytes are the same on every server that has the key.
func keyBytes(k crypto.Signer) ([]byte, error) {
	switch k := k.(type) {
	case *ecdsa.PrivateKey:
		return k.Bytes()
	case *rsa.PrivateKey:
		return x509.MarshalPKCS1PrivateKey(k), nil
	}
	return nil, fmt.Errorf("key of type %T, expected ECDSA or RSA", k)
}

// Seal encrypts a successor for the servers of the cluster that this one is of.
func (a *Authority) Seal(s Successor, to string) ([]byte, error) {
	aead, err := a.cipher()
	if err != nil {
		return nil, fmt.Errorf("seal the new authority: %w", err)
	}
	plain, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("seal the new authority: %w", err)
	}
	return aead.Seal(nil, nil, plain, []byte(to)), nil
}

// Unseal decrypts what Seal has encrypted.
func (a *Authority) Unseal(sealed []byte, to string) (*Successor, error) {
	aead, err := a.cipher()
	if err != nil {
		return nil, fmt.Errorf("read the new authority: %w", err)
	}
	plain, err := aead.Open(nil, nil, sealed, []byte(to))
	if err != nil {
		return nil, errors.New("the new authority was sealed by a server with other keys (ca.key, sa.key): this server's folder pki is not that of the others")
	}
	var s Successor
	if err := json.Unmarshal(plain, &s); err != nil {
		return nil, fmt.Errorf("read the new authority: %w", err)
	}
	for _, h := range []Heir{s.Cluster, s.FrontProxy} {
		if len(h.Cert) == 0 || len(h.Key) == 0 {
			return nil, errors.New("the new authority is not whole")
		}
	}
	return &s, nil
}
