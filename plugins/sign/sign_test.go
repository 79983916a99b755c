// SPDX-License-Identifier: Apache-2.0

package sign_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/sign"
)

const digest = "sha256:93a44bbb96c751218e4c00d479e4c14358122a389acca16205b1e4d0dc5f9476"

func signers(tb testing.TB) map[string]crypto.Signer {
	tb.Helper()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	return map[string]crypto.Signer{"ecdsa": ec, "ed25519": ed, "rsa": r}
}

func TestASignatureCountsForItsManifestOnly(t *testing.T) {
	for name, key := range signers(t) {
		t.Run(name, func(t *testing.T) {
			payload, err := sign.NewPayload(digest, "registry.example/team/policy", map[string]string{"env": "prod"})
			if err != nil {
				t.Fatal(err)
			}
			raw, err := sign.SignBytes(key, payload)
			if err != nil {
				t.Fatal(err)
			}
			other := strings.ReplaceAll(string(payload), "cosign container image signature", "something else")
			rawOther, err := sign.SignBytes(key, []byte(other))
			if err != nil {
				t.Fatal(err)
			}
			good := sign.Signature{Payload: payload, Signature: raw}
			keys := []crypto.PublicKey{key.Public()}
			for _, c := range []struct {
				name, digest string
				signatures   []sign.Signature
				keys         []crypto.PublicKey
				annotations  map[string]string
				problem      string
			}{
				{"good", digest, []sign.Signature{good}, keys, nil, ""},
				{"good, after a bad one", digest, []sign.Signature{{Payload: []byte("{}"), Signature: raw}, good}, keys, map[string]string{"env": "prod"}, ""},
				{"another digest", "sha256:00", []sign.Signature{good}, keys, nil, "it is for the manifest " + digest},
				{"another payload", digest, []sign.Signature{{Payload: []byte(other), Signature: raw}}, keys, nil, "another key, or its payload was changed"},
				{"another type", digest, []sign.Signature{{Payload: []byte(other), Signature: rawOther}}, keys, nil, `of type "something else"`},
				{"an annotation", digest, []sign.Signature{good}, keys, map[string]string{"env": "test"}, `annotation env is not "test"`},
				{"none", digest, nil, keys, nil, "there is none"},
				{"no key", digest, []sign.Signature{good}, nil, nil, "no key was given"},
				{"cut off", digest, []sign.Signature{{Payload: payload, Signature: raw[:5]}}, keys, nil, "another key"},
			} {
				err := sign.Verify("it", c.digest, c.signatures, c.keys, c.annotations)
				if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
					t.Errorf("%s: %v, want %q", c.name, err, c.problem)
				}
			}
		})
	}
}

func TestKeysThatCannotBeTrustedAreRefused(t *testing.T) {
	short := &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 1023, 1), E: 65537}
	der, err := x509.MarshalPKIXPublicKey(short)
	if err != nil {
		t.Fatal(err)
	}
	for text, problem := range map[string]string{
		string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})):          "too short",
		string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")})):  "read a public key",
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})): "found a CERTIFICATE",
		"": "expected public keys in PEM",
	} {
		if _, err := sign.ParsePublicKeys([]byte(text)); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%v, want %q", err, problem)
		}
	}
	bomb := `{"kdf":{"name":"scrypt","params":{"N":1073741824,"r":8,"p":1},"salt":"AA=="},"cipher":{"name":"nacl/secretbox","nonce":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"},"ciphertext":"AA=="}`
	text := pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED SIGSTORE PRIVATE KEY", Bytes: []byte(bomb)})
	if _, err := sign.ParsePrivateKey(text, nil); err == nil || !strings.Contains(err.Error(), "too much memory") {
		t.Errorf("a key that asks for a terabyte: %v", err)
	}
}

func FuzzKeys(f *testing.F) {
	f.Add([]byte("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"))
	f.Add([]byte("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\ne30=\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if keys, err := sign.ParsePublicKeys(text); err == nil && len(keys) == 0 {
			t.Error("no keys and no error")
		}
		if key, err := sign.ParsePrivateKey(text, []byte("x")); err == nil && key == nil {
			t.Error("no key and no error")
		}
	})
}
