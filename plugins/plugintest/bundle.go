// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// SigningKey makes a key pair of ES256, both halves in PEM.
func SigningKey(tb testing.TB) (private, public string) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	open, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		tb.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: open}))
}

// Bundle builds a bundle of some files, for a target and entrypoints, and signs it with a
// private key of [SigningKey], all by Open Policy Agent's own library.
func Bundle(tb testing.TB, files map[string]string, private, target string, entrypoints ...string) []byte {
	tb.Helper()
	dir, key := tb.TempDir(), filepath.Join(tb.TempDir(), "key.pem")
	if err := os.WriteFile(key, []byte(private), 0o600); err != nil {
		tb.Fatal(err)
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	var complaints bytes.Buffer
	cmd := exec.CommandContext(tb.Context(), Regotool(tb), append([]string{"bundle", ".", key, "ES256", target}, entrypoints...)...)
	cmd.Dir, cmd.Stderr = dir, &complaints
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("%v: %s", err, complaints.String())
	}
	return out
}
