// SPDX-License-Identifier: Apache-2.0

// Package apiservertest starts a real apiserver for tests: embedded etcd, the
// whole contract, TLS on loopback, and a token for each user that a test wants.
package apiservertest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/apiserver"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// Server is a running apiserver.
type Server struct {
	*apiserver.Server
	URL        string
	CA         []byte
	Store      store.Store
	Cache      *watchcache.Cache
	Registries *registry.Set
	Contract   *api.Contract
	Authorizer authz.Authorizer
	stop       func()
}

// Options change what Start starts.
type Options struct {
	// Store is used instead of an embedded etcd.
	Store store.Store
	// Registry and Server change the configurations before they are used.
	Registry func(*registry.Config)
	Server   func(*apiserver.Config)
	// Authorizer replaces "everybody may do everything".
	Authorizer authz.Authorizer
	// Fsync makes the embedded etcd durable, at the price of speed.
	Fsync bool
}

// Start starts a server that lives as long as the test.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	s, err := Run(tb.Context(), tb.TempDir(), o)
	if err != nil {
		tb.Fatalf("start the server: %v", err)
	}
	tb.Cleanup(s.Stop)
	return s
}

// Stop ends the server and waits for it.
func (s *Server) Stop() { s.stop() }

// Run starts a server with its data in dir.
func Run(parent context.Context, dir string, o Options) (_ *Server, err error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	var running sync.WaitGroup
	var closers []func()
	stop := sync.OnceFunc(func() {
		cancel()
		running.Wait()
		for i := len(closers) - 1; i >= 0; i-- {
			closers[i]()
		}
	})
	defer func() {
		if err != nil {
			stop()
		}
	}()
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s := &Server{Store: o.Store, stop: stop, Authorizer: o.Authorizer}
	if s.Store == nil {
		e, err := etcd.Start(ctx, etcd.ServerConfig{Dir: filepath.Join(dir, "etcd"), NoFsync: !o.Fsync})
		if err != nil {
			return nil, err
		}
		closers = append(closers, func() { _ = e.Close() })
		s.Store = e.Store()
	}
	if s.Contract, err = api.New(); err != nil {
		return nil, err
	}
	if s.Cache, err = watchcache.New(watchcache.Config{Store: s.Store, Logger: logger}); err != nil {
		return nil, err
	}
	if s.Authorizer == nil {
		s.Authorizer = Everybody{}
	}
	rc := registry.Config{Contract: s.Contract, Store: s.Store, Cache: s.Cache, Logger: logger, Authorizer: s.Authorizer}
	if o.Registry != nil {
		o.Registry(&rc)
	}
	if s.Registries, err = registry.New(rc); err != nil {
		return nil, err
	}
	cert, caPEM, err := certificate()
	if err != nil {
		return nil, err
	}
	s.CA = caPEM
	metrics := prometheus.NewRegistry()
	sc := apiserver.Config{
		Contract: s.Contract, Registries: s.Registries, Authenticator: Tokens{}, Authorizer: s.Authorizer, Listen: "127.0.0.1:0",
		TLS:     &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil }},
		Metrics: metrics, Gatherer: metrics, Logger: logger, ShutdownDelay: 5 * time.Second,
	}
	if o.Server != nil {
		o.Server(&sc)
	}
	if s.Server, err = apiserver.New(sc); err != nil {
		return nil, err
	}
	for _, run := range []func(context.Context) error{s.Cache.Run, s.Server.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				logger.ErrorContext(parent, "a part of the test server failed", "error", err)
			}
		})
	}
	<-s.Cache.Ready()
	<-s.Server.Ready()
	s.URL = "https://" + s.Addr().String()
	return s, nil
}

// Config is a client configuration for a user; groups may follow the name.
func (s *Server) Config(name string, groups ...string) *rest.Config {
	return &rest.Config{
		Host: s.URL, BearerToken: strings.Join(append([]string{name}, groups...), "|"), TLSClientConfig: rest.TLSClientConfig{CAData: s.CA},
		QPS: -1, UserAgent: "apiservertest/1",
	}
}

// Kubeconfig writes a kubeconfig for a user and returns its path.
func (s *Server) Kubeconfig(tb testing.TB, name string, groups ...string) string {
	tb.Helper()
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["test"] = &clientcmdapi.Cluster{Server: s.URL, CertificateAuthorityData: s.CA}
	cfg.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: strings.Join(append([]string{name}, groups...), "|")}
	cfg.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	cfg.CurrentContext = "test"
	file := filepath.Join(tb.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		tb.Fatalf("write the kubeconfig: %v", err)
	}
	return file
}

// Tokens authenticates "name|group|group" as exactly that.
type Tokens struct{}

// AuthenticateRequest implements authenticator.Request.
func (Tokens) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	token, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" {
		return nil, false, nil
	}
	parts := strings.Split(token, "|")
	return &authenticator.Response{User: &user.DefaultInfo{Name: parts[0], Groups: append(parts[1:], user.AllAuthenticated)}}, true, nil
}

// Everybody may do everything.
type Everybody struct{}

// Name implements authz.Authorizer.
func (Everybody) Name() string { return "everybody" }

// Authorize implements authz.Authorizer.
func (Everybody) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}

func certificate() (*tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
