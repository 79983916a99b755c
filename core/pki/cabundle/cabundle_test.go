// SPDX-License-Identifier: Apache-2.0

package cabundle_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/pki/cabundle"
)

func certificate(t *testing.T, name string, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestABundleIsReadAsItWasWritten(t *testing.T) {
	a, b := certificate(t, "a", newKey(t)), certificate(t, "b", newKey(t))
	file := filepath.Join(t.TempDir(), "ca.crt")
	text := "# a comment\n-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n" + string(cabundle.Encode(a, b))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := cabundle.Read(file)
	if err != nil || len(got) != 2 || !got[0].Equal(a) || !got[1].Equal(b) {
		t.Errorf("read %d certificates (%v)", len(got), err)
	}
	for text, want := range map[string]string{
		"":  "at least one PEM block",
		"x": "at least one PEM block",
		"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n": "x509",
	} {
		if _, err := cabundle.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// A pin outlives a certificate that is signed again with the authority's key, and
// nothing else.
func TestAPinNamesTheKey(t *testing.T) {
	key := newKey(t)
	one, again, other := certificate(t, "a", key), certificate(t, "a", key), certificate(t, "a", newKey(t))
	if cabundle.Pin(one) != cabundle.Pin(again) || cabundle.Pin(one) == cabundle.Pin(other) {
		t.Errorf("pins %s, %s, %s", cabundle.Pin(one), cabundle.Pin(again), cabundle.Pin(other))
	}
}

// A file that is replaced changes the pool, one that cannot be read does not.
func TestAFileIsFollowed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	if _, err := cabundle.Follow(file); err == nil {
		t.Error("a file that is missing is followed")
	}
	replace := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(file+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	a, b := certificate(t, "a", newKey(t)), certificate(t, "b", newKey(t))
	replace(cabundle.Encode(a))
	pool, err := cabundle.Follow(file)
	if err != nil {
		t.Fatal(err)
	}
	if !pool().Equal(cabundle.Pool(a)) {
		t.Error("the pool is not the file's")
	}
	replace([]byte("half of a cert"))
	if !pool().Equal(cabundle.Pool(a)) {
		t.Error("a file that cannot be read changed the pool")
	}
	replace(cabundle.Encode(a, b))
	if !pool().Equal(cabundle.Pool(a, b)) {
		t.Error("the pool does not follow the file")
	}
}
