// SPDX-License-Identifier: Apache-2.0

// Package pki makes and renews the certificates and keys of one cluster.
//
// It owns one directory (0700, every key 0600) and guarantees that whatever is
// in it can be used: a file that is missing, near its end, of another authority
// or for other names is made again; what is good stays byte for byte as it is,
// so that starting twice changes nothing. A certificate and its key share one
// file and are replaced by one rename: a reader sees the old pair or the new
// one, never a mixture, also after a crash.
//
// It does not replace a certificate authority or the service account key by itself,
// because everything out in the world that trusts them would break; an authority of its own
// making near its end is signed again with its own key, which all leaves survive. An authority
// that an operator supplies, a root or an intermediate, is checked whenever it is read. An authority
// changes in steps (Follow), of which each is to be taken by all servers before the next.
package pki

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/core/pki/cabundle"
	"github.com/wasmplane/wasmplane/core/run"
)

// How long certificates live. A third of the life before the end they are
// renewed, which leaves four months for a machine that was switched off.
const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 365 * 24 * time.Hour
	// backdate covers clocks of clients that run behind ours.
	backdate = 5 * time.Minute
)

// Config says where the PKI lives and for which names the apiserver answers.
type Config struct {
	// Dir holds the files; it is made if missing.
	Dir string
	// ClusterDomain ends the names of Services; default "cluster.local".
	ClusterDomain string
	// ServiceIPs are the addresses of the `kubernetes` Service.
	ServiceIPs []netip.Addr
	// Hosts are further names and addresses by which clients reach the apiserver.
	Hosts []string
	// Now is the clock; default time.Now.
	Now func() time.Time
	// Log tells of what is made and renewed; default: nothing is logged.
	Log *slog.Logger
}

// Authority is the opened PKI. Its methods are safe for concurrent use.
type Authority struct {
	cfg        Config
	cluster    *ca
	frontProxy *ca
	saKey      *ecdsa.PrivateKey
	renewed    *run.Follow
	seen       [sha256.Size]byte // of renewed, when the folder was opened
	changed    chan struct{}     // has something in it when certificates were made again

	mu    sync.Mutex
	etcd  *ca              // nil = nobody has asked for it
	pairs map[string]*Pair // by file name
}

// What a certificate is good for.
var (
	serving = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	calling = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
)

// Open reads the PKI in cfg.Dir and makes what is missing. Two processes that
// open the same directory wait for each other.
func Open(cfg Config) (*Authority, error) {
	if cfg.Dir == "" {
		return nil, errors.New("pki: Dir is empty: name the directory for certificates and keys")
	}
	if cfg.ClusterDomain == "" {
		cfg.ClusterDomain = "cluster.local"
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the certificate directory: %w", err)
	}
	if err := os.Chmod(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("protect the certificate directory: %w", err)
	}
	a := &Authority{cfg: cfg, pairs: map[string]*Pair{}, changed: make(chan struct{}, 1)}
	a.renewed = &run.Follow{
		What: "the list of certificates that were renewed by hand", Files: []string{a.path(renewedFile)}, Log: cfg.Log,
		Apply: func(context.Context) error { return a.Renew() },
	}
	a.seen = a.renewed.Seen()
	return a, a.locked(a.open)
}

func (a *Authority) open() (err error) {
	if a.cluster, err = a.openCA("ca", "kubernetes", a.serverNames()); err != nil {
		return err
	}
	if a.frontProxy, err = a.openCA("front-proxy-ca", "front-proxy-ca", []string{}); err != nil {
		return err
	}
	a.saKey, err = a.openServiceAccountKey()
	return err
}

// locked runs f while no other process writes to the directory.
func (a *Authority) locked(f func() error) error {
	unlock, err := lockDir(a.path(".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	return f()
}

func (a *Authority) path(name string) string { return filepath.Join(a.cfg.Dir, name) }

// CAFile is the path of the cluster's authority, CAPEM its content.
func (a *Authority) CAFile() string { return a.path("ca.crt") }

// CAPEM are the authorities that vouch for clients and machines of this cluster, the one that
// signs first. What an intermediate's root signs besides has nothing to say here, so that it is not among them.
func (a *Authority) CAPEM() []byte { return a.cluster.pem() }

// RootsPEM are the certificates that clients need to know servers of this cluster: the roots of CAPEM's.
func (a *Authority) RootsPEM() []byte { return cabundle.Encode(a.cluster.roots()...) }

// FrontProxyCAPEM are the certificates that requests of authenticating proxies are checked against.
func (a *Authority) FrontProxyCAPEM() []byte { return a.frontProxy.pem() }

// ClusterCA is the authority that signs serving and client certificates.
func (a *Authority) ClusterCA() *x509.Certificate { return a.cluster.certificate() }

// FrontProxyCA is the authority that signs certificates of authenticating proxies.
func (a *Authority) FrontProxyCA() *x509.Certificate { return a.frontProxy.certificate() }

// TrustedCAs are those whose certificates are accepted, ClusterCA first: while the
// authority changes there are two.
func (a *Authority) TrustedCAs() []*x509.Certificate { return a.cluster.trusted() }

// TrustedFrontProxyCAs are TrustedCAs of authenticating proxies.
func (a *Authority) TrustedFrontProxyCAs() []*x509.Certificate { return a.frontProxy.trusted() }

// Roots is a pool of TrustedCAs.
func (a *Authority) Roots() *x509.CertPool { return cabundle.Pool(a.TrustedCAs()...) }

// ClientTLS is for a client of what the authority signs, with p as its certificate. It answers the
// same pointer until p or TrustedCAs change.
func (a *Authority) ClientTLS(p *Pair) func() *tls.Config {
	var mu sync.Mutex
	var shown *tls.Certificate
	var trusted []*x509.Certificate
	var now *tls.Config
	return func() *tls.Config {
		mu.Lock()
		defer mu.Unlock()
		show, trust := p.Certificate(), a.TrustedCAs()
		if show != shown || !slices.EqualFunc(trust, trusted, (*x509.Certificate).Equal) {
			shown, trusted = show, trust
			now = &tls.Config{
				MinVersion: tls.VersionTLS12, RootCAs: cabundle.Pool(trust...),
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return show, nil },
			}
		}
		return now
	}
}

// ServiceAccountKey signs service account tokens.
func (a *Authority) ServiceAccountKey() *ecdsa.PrivateKey { return a.saKey }

// CASigner gives the cluster's authority to who signs certificate requests (the controller of
// certificates.k8s.io). chain (PEM) follows what it signs: it is empty where the authority is a root.
func (a *Authority) CASigner() (cert *x509.Certificate, chain []byte, key crypto.Signer) {
	s := a.cluster.state.Load()
	return s.cert, cabundle.Encode(s.below()...), s.key
}

// APIServer is the serving certificate of the apiserver.
func (a *Authority) APIServer() (*Pair, error) {
	return a.pair("apiserver", request{user: "kube-apiserver", hosts: a.serverNames(), usages: serving}, a.cluster)
}

func (a *Authority) serverNames() []string {
	hosts := []string{
		"localhost", "127.0.0.1", "::1",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc." + a.cfg.ClusterDomain,
	}
	for _, ip := range a.cfg.ServiceIPs {
		hosts = append(hosts, ip.String())
	}
	return append(hosts, a.cfg.Hosts...)
}

// Client is the client certificate of an identity, made when first asked for.
func (a *Authority) Client(id Identity) (*Pair, error) {
	if err := id.validate(); err != nil {
		return nil, err
	}
	authority := a.cluster
	if id.frontProxy {
		authority = a.frontProxy
	}
	r := request{user: id.User, groups: id.Groups, usages: calling, atOnce: slices.Contains(id.Groups, nodesGroup)}
	return a.pair(id.Name, r, authority)
}

// KubeletServing is the serving certificate of a node's kubelet. hosts are the
// node's names and addresses.
func (a *Authority) KubeletServing(node string, hosts ...string) (*Pair, error) {
	id := Node(node)
	if err := id.validate(); err != nil {
		return nil, err
	}
	return a.pair("kubelet-serving-"+node, request{
		user: id.User, groups: id.Groups, hosts: append([]string{node}, hosts...), usages: serving,
	}, a.cluster)
}

// Serving is the certificate of a server of ours that is none of the cluster's own
// components. hosts are its names and addresses.
func (a *Authority) Serving(name string, hosts ...string) (*Pair, error) {
	return a.pair(name, request{user: name, hosts: hosts, usages: serving}, a.cluster)
}

// EtcdPeer is the certificate by which the etcd of this server and those of others know
// each other, and the file of the authority that vouches for all of them. It signs light servers
// besides (SignStoreClient), and nothing else. hosts are the addresses by which others reach this one.
func (a *Authority) EtcdPeer(hosts ...string) (pair *Pair, authorityFile string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.openEtcdCA(); err != nil {
		return nil, "", err
	}
	pair, err = a.keep("etcd-peer", request{user: "etcd-peer", hosts: hosts, usages: append(slices.Clone(serving), calling...)}, a.etcd)
	return pair, a.etcd.certFile(), err
}

// openEtcdCA opens the stores' authority, where nobody has yet. The caller holds mu.
func (a *Authority) openEtcdCA() error {
	if a.etcd != nil {
		return nil
	}
	return a.locked(func() (err error) {
		a.etcd, err = a.openCA("etcd-ca", "etcd-ca", nil)
		return err
	})
}

// EtcdCAFile is the path of the certificate of the stores' authority; it need not be there.
func (a *Authority) EtcdCAFile() string { return a.path("etcd-ca.crt") }

// pair finds or makes the pair called name and keeps it for renewal.
func (a *Authority) pair(name string, r request, authority *ca) (*Pair, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.keep(name, r, authority)
}

func (a *Authority) keep(name string, r request, authority *ca) (*Pair, error) {
	if p, ok := a.pairs[name]; ok && p.request.equal(r) {
		return p, nil
	}
	p := &Pair{name: name, file: a.path(name + ".pem"), request: r, authority: authority}
	if err := a.locked(func() error { return a.ensure(p) }); err != nil {
		return nil, err
	}
	a.pairs[name] = p
	return p, nil
}

// ensure loads p's file, and issues the pair again if it will not do.
func (a *Authority) ensure(p *Pair) error {
	why := p.load(a.cfg.Now())
	if why == nil {
		return nil
	}
	if err := p.issue(a.cfg.Now()); err != nil {
		return fmt.Errorf("make the certificate %s: %w", p.file, err)
	}
	if !errors.Is(why, os.ErrNotExist) {
		a.cfg.Log.Info("renewed a certificate", "name", p.name, "because", why, "until", p.leaf().NotAfter)
	}
	return nil
}

// Renew makes again every certificate that this Authority handed out and that
// has less than a third of its life left. It also finds pairs that another
// process renewed.
func (a *Authority) Renew() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	before, roots := map[*Pair]*content{}, a.RootsPEM()
	for _, p := range a.pairs {
		before[p] = p.current.Load()
	}
	defer func() {
		same := bytes.Equal(roots, a.RootsPEM())
		for p, was := range before {
			same = same && p.current.Load() == was
		}
		if same {
			return
		}
		select {
		case a.changed <- struct{}{}:
		default:
		}
	}()
	return a.locked(func() error {
		var errs []error
		for _, authority := range []*ca{a.cluster, a.frontProxy, a.etcd} {
			if authority == nil {
				continue
			}
			if err := a.readCA(authority); err != nil {
				errs = append(errs, err)
			}
		}
		for _, p := range a.pairs {
			if err := a.ensure(p); err != nil {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
}

// Changed has something in it after Renew has changed a pair, or what clients trust: for who keeps
// copies of them. One receiver is told.
func (a *Authority) Changed() <-chan struct{} { return a.changed }

// Run renews twice a day until ctx ends, and takes on what RenewNow has made. A failure is
// logged and tried again: certificates have a third of their life left when it first happens.
func (a *Authority) Run(ctx context.Context) error {
	return run.Parallel(a.renewTwiceADay, func(ctx context.Context) error { return a.renewed.Run(ctx, a.seen) })(ctx)
}

func (a *Authority) renewTwiceADay(ctx context.Context) error {
	tick := time.NewTicker(12 * time.Hour)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := a.Renew(); err != nil {
				a.cfg.Log.ErrorContext(ctx, "could not renew certificates; will try again", "error", err)
			}
		}
	}
}

// strongCiphers are those of TLS 1.2 that authenticate what they encrypt; those of
// TLS 1.3 all do.
func strongCiphers() (ids []uint16) {
	for _, c := range tls.CipherSuites() {
		if strings.HasPrefix(c.Name, "TLS_ECDHE_") && (strings.Contains(c.Name, "_GCM_") || strings.Contains(c.Name, "_CHACHA20_")) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// ServerTLS serves with p and asks for client certificates without demanding
// one, because tokens identify too. The pair may be renewed while it is in use.
func ServerTLS(p *Pair) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		CipherSuites:   strongCiphers(),
		ClientAuth:     tls.RequestClientCert,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.Certificate(), nil },
	}
}

// AskingFor makes a configuration of ServerTLS name authorities to clients when it asks for their
// certificates: one that has several, a browser for example, then knows which of them to show. What
// is shown is not checked here. Each connection has those of its moment.
func AskingFor(c *tls.Config, authorities func() []*x509.Certificate) *tls.Config {
	c = c.Clone()
	asking := c.Clone()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := asking.Clone()
		now.ClientCAs = cabundle.Pool(authorities()...)
		return now, nil
	}
	return c
}
