// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// cluster is a running `wasmplane up` with simulated nodes.
type cluster struct {
	*harness.Cluster
	t *testing.T
}

func start(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{harness.NewFor(t, harness.Binary(t), t.TempDir()), t}
	if _, err := c.Up("--nodes", "simulated:2", "--log-level", "warn"); err != nil {
		t.Fatal(err)
	}
	c.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout", harness.Patience.String())
	harness.Eventually(t, "a default account", func() error {
		_, err := c.try("get", "serviceaccount", "default")
		return err
	})
	return c
}

// run starts a program that ends with the test, or when stop is called.
func (c *cluster) run(env []string, name, program string, args ...string) (stop func()) {
	c.t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir = c.Dir
	cmd.Env = append(append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "HOME="+c.Dir), env...)
	p, err := c.Start(name, cmd)
	if err != nil {
		c.t.Fatal(err)
	}
	return func() {
		if err := p.End(syscall.SIGTERM); err != nil {
			c.t.Error(err)
		}
	}
}

func (c *cluster) try(args ...string) (string, error) {
	return c.Cluster.Kubectl(c.t.Context(), args...)
}

func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// apply applies a manifest server-side, as kubectl does it with a file.
func (c *cluster) apply(manifest string) {
	c.t.Helper()
	file := filepath.Join(c.Dir, "manifest.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.kubectl("apply", "--server-side", "-f", file)
}

// prints waits until kubectl prints want.
func (c *cluster) prints(want string, args ...string) {
	c.t.Helper()
	harness.Eventually(c.t, "kubectl "+strings.Join(args, " ")+" prints "+want, func() error {
		out, err := c.try(args...)
		if err == nil && strings.TrimSpace(out) != want {
			err = fmt.Errorf("it prints %q", out)
		}
		return err
	})
}

// certificate writes a certificate for the loopback address and names, and its key, into a
// folder, as tls.crt and tls.key, and answers the certificate.
func certificate(t *testing.T, dir string, names ...string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "webhook"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:  names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, data := range map[string][]byte{"tls.crt": cert, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert
}
