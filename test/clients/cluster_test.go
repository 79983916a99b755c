package clients

import (
	"bytes"
	"context"
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
)

// patience bounds every wait: machines are busy.
const patience = 2 * time.Minute

// cluster is a running `wasmplane up` with simulated nodes.
type cluster struct {
	t               *testing.T
	bin, dir, admin string
}

func start(t *testing.T) *cluster {
	t.Helper()
	bin, err := filepath.Abs("../../bin/wasmplane")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: run `make build` first", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	c := &cluster{t: t, bin: bin, dir: t.TempDir()}
	data := filepath.Join(c.dir, "data")
	c.admin = filepath.Join(data, "kubeconfig")
	c.run(nil, "wasmplane", bin, "up", "--nodes", "simulated:2", "--data-dir", data, "--listen", address,
		"--cluster-name", fmt.Sprintf("clients%d", os.Getpid()%100000), "--log-level", "warn")
	c.eventually("the cluster is ready", func() error {
		_, err := c.try("wait", "--for=condition=Ready", "node", "--all", "--timeout=5s")
		return err
	})
	c.eventually("there is a default account", func() error {
		_, err := c.try("get", "serviceaccount", "default")
		return err
	})
	return c
}

// run starts a program that ends with the test, or when stop is called.
func (c *cluster) run(env []string, name, program string, args ...string) (stop func()) {
	c.t.Helper()
	log, err := os.Create(filepath.Join(c.dir, name+".log"))
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, log, log
	cmd.Env = append(append(os.Environ(), "KUBECONFIG="+c.admin, "HOME="+c.dir), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = cmd.Wait() }() // ends with the program
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.NewTimer(30 * time.Second)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
			_ = cmd.Process.Kill()
			<-done
		}
	}
	c.t.Cleanup(func() {
		stop()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && c.t.Failed() {
			c.t.Logf("%s printed last:\n%s", name, text[max(0, len(text)-4<<10):])
		}
	})
	return stop
}

// try runs kubectl.
func (c *cluster) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.bin, append([]string{"kubectl", "--kubeconfig", c.admin}, args...)...)
	cmd.Dir = c.dir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
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
	file := filepath.Join(c.dir, "manifest.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.kubectl("apply", "--server-side", "-f", file)
}

// eventually waits until check has nothing to complain about.
func (c *cluster) eventually(what string, check func() error) {
	c.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-limit.C:
			c.t.Fatalf("waited for %s: %s: %v", patience, what, err)
		}
	}
}

// prints waits until kubectl prints want.
func (c *cluster) prints(want string, args ...string) {
	c.t.Helper()
	c.eventually("kubectl "+strings.Join(args, " ")+" prints "+want, func() error {
		out, err := c.try(args...)
		if err == nil && strings.TrimSpace(out) != want {
			err = fmt.Errorf("it prints %q", out)
		}
		return err
	})
}

// certificate writes a certificate for the loopback address and its key into a
// folder, as tls.crt and tls.key, and answers the certificate.
func certificate(t *testing.T, dir string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "webhook"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
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
