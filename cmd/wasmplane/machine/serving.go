// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/pki"
)

// Serving is what the kubelet's server shows, and whom it trusts.
type Serving struct {
	Roots func() *x509.CertPool
	TLS   *tls.Config
	// Renew keeps the certificate; nil = somebody else does.
	Renew func(context.Context) error
}

// ServingOf is what the server of a node at some addresses has.
type ServingOf func(node string, addresses []netip.Addr) (Serving, error)

// SignedBy takes certificates of an authority whose key this process has, and renews.
func SignedBy(authority *pki.Authority) ServingOf {
	return func(node string, addresses []netip.Addr) (Serving, error) {
		pair, err := authority.KubeletServing(node, append(texts(addresses), "127.0.0.1", node)...)
		if err != nil {
			return Serving{}, err
		}
		return Serving{Roots: authority.Roots, TLS: pki.ServerTLS(pair)}, nil
	}
}

// SignedByCluster takes certificates that the cluster signs, and keeps them in dir. The
// node's own identity asks for them.
func SignedByCluster(dir string, own *rest.Config, log *slog.Logger) ServingOf {
	return func(node string, addresses []netip.Addr) (Serving, error) {
		roots, err := process.Roots(own)
		if err != nil {
			return Serving{}, fmt.Errorf("the authority by which a kubelet knows the API server: %w", err)
		}
		set, err := client.New(own)
		if err != nil {
			return Serving{}, err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return Serving{}, fmt.Errorf("make the folder of the node's certificates: %w", err)
		}
		renewal, err := join.RenewServing(dir, node, addresses, set.Kube, log)
		if err != nil {
			return Serving{}, err
		}
		return Serving{Roots: roots, Renew: renewal.Run, TLS: &tls.Config{
			MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2", "http/1.1"},
			GetCertificate: renewal.GetCertificate,
		}}, nil
	}
}

// ServingHere is SignedBy where the data directory holds the cluster's keys, as on a
// machine that runs an API server too, and SignedByCluster elsewhere: no machine makes an
// authority that nobody knows. renew keeps what it gave.
func ServingHere(c *process.Component) (serving ServingOf, renew func(context.Context) error, err error) {
	o := c.Options
	switch _, err := os.Stat(filepath.Join(o.Dir.PKI(), "ca.key")); {
	case errors.Is(err, fs.ErrNotExist):
		return SignedByCluster(o.Dir.Member(), c.Config, o.Logger), func(ctx context.Context) error { <-ctx.Done(); return nil }, nil
	case err != nil:
		return nil, nil, fmt.Errorf("look for the cluster's keys: %w", err)
	}
	authority, err := pki.Open(pki.Config{Dir: o.Dir.PKI(), ClusterDomain: o.Config.Cluster.Domain, Log: o.Logger})
	if err != nil {
		return nil, nil, err
	}
	return SignedBy(authority), authority.Run, nil
}
