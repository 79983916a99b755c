// SPDX-License-Identifier: Apache-2.0

package secureserving

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"
)

// A renewed certificate is taken on by new connections; while its files do not belong
// together, the one before serves on.
func TestTheFilesOfACertificateAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	write := func(file string, data []byte, at time.Time) {
		t.Helper()
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	made := func(host string) (c, k []byte) {
		t.Helper()
		c, k, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c, k
	}
	first := time.Unix(1_000_000_000, 0)
	c, k := made("before")
	write(certFile, c, first)
	write(keyFile, k, first)
	log := slog.New(slog.DiscardHandler)
	tls, err := Certificate(certFile, keyFile, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, log)
	if err != nil {
		t.Fatal(err)
	}
	serves := func(want string) {
		t.Helper()
		pair, err := tls.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := pair.Leaf.VerifyHostname(want); err != nil {
			t.Error(err)
		}
	}
	serves("before")
	c, k = made("after")
	write(certFile, c, first.Add(time.Hour))
	serves("before")
	write(keyFile, k, first.Add(time.Hour))
	serves("after")
	if _, err := Certificate(filepath.Join(dir, "none"), keyFile, nil, log); err == nil {
		t.Error("a certificate that is not there was taken")
	}
}
