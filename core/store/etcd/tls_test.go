// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
)

// authority issues certificates into files.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue(name, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) issue(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	return a.issueFor(name, c, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
}

func (a *authority) issueFor(name string, c *x509.Certificate, usages ...x509.ExtKeyUsage) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	c.ExtKeyUsage = usages
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		a.file(name + ".crt"): {Type: "CERTIFICATE", Bytes: der}, a.file(name + ".key"): {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// An external etcd that asks for certificates gets ours, and those who come
// with the wrong ones, or trust the wrong authority, are told.
func TestDialWithCertificates(t *testing.T) {
	ca := newAuthority(t, "ca")
	ca.issue("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	ca.issue("client", &x509.Certificate{})
	other := newAuthority(t, "other")
	other.issue("client", &x509.Certificate{})

	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.TickMs, cfg.ElectionMs = 20, 100
	listen := url.URL{Scheme: "https", Host: freeAddress(t)}
	cfg.ListenPeerUrls, cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{}, []url.URL{listen}, []url.URL{listen}
	cfg.ClientTLSInfo = transport.TLSInfo{
		CertFile: ca.file("server.crt"), KeyFile: ca.file("server.key"), TrustedCAFile: ca.file("ca.crt"),
		ClientCertAuth: true,
	}
	srv, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close)
	<-srv.Server.ReadyNotify()

	good := etcdclient.Config{
		Endpoints: []string{listen.String()}, CAFile: ca.file("ca.crt"), CertFile: ca.file("client.crt"),
		KeyFile: ca.file("client.key"), Timeout: time.Minute,
	}
	s := dial(t, good)
	if _, err := s.Put(t.Context(), "/registry/a", []byte("x"), 0, 0); err != nil {
		t.Fatal(err)
	}

	bad := good
	bad.Timeout = 5 * time.Second
	bad.CAFile = other.file("other.crt")
	_, err = etcdclient.Dial(t.Context(), bad)
	wantError(t, err, listen.String(), "certificate signed by unknown authority")
	bad = good
	bad.Timeout = 5 * time.Second
	bad.CertFile, bad.KeyFile = other.file("client.crt"), other.file("client.key")
	_, err = etcdclient.Dial(t.Context(), bad)
	wantError(t, err, listen.String(), "remote error: tls: ")
	t.Log(err)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
