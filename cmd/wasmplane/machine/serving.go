// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"crypto/tls"
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
	CA  []byte
	TLS *tls.Config
	// Renew keeps the certificate; nil = somebody else does.
	Renew func(context.Context) error
}

// ServingOf is what the server of a node at an address has.
type ServingOf func(node string, address netip.Addr) (Serving, error)

// SignedBy takes certificates of an authority whose key this process has, and renews.
func SignedBy(authority *pki.Authority) ServingOf {
	return func(node string, address netip.Addr) (Serving, error) {
		pair, err := authority.KubeletServing(node, address.String(), "127.0.0.1", node)
		if err != nil {
			return Serving{}, err
		}
		return Serving{CA: authority.CAPEM(), TLS: pki.ServerTLS(pair)}, nil
	}
}

// SignedByCluster takes certificates that the cluster signs, and keeps them in dir. The
// node's own identity asks for them.
func SignedByCluster(ctx context.Context, dir string, own *rest.Config, log *slog.Logger) ServingOf {
	return func(node string, address netip.Addr) (Serving, error) {
		trusted := rest.CopyConfig(own)
		if err := rest.LoadTLSFiles(trusted); err != nil {
			return Serving{}, fmt.Errorf("read the cluster's authority: %w", err)
		}
		if len(trusted.CAData) == 0 {
			return Serving{}, errors.New("the kubeconfig names no certificate authority; a kubelet needs it (certificate-authority), to know the API server")
		}
		set, err := client.New(own)
		if err != nil {
			return Serving{}, err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return Serving{}, fmt.Errorf("make the folder of the node's certificates: %w", err)
		}
		renewal, err := join.RenewServing(ctx, dir, node, address.AsSlice(), set.Kube, log)
		if err != nil {
			return Serving{}, err
		}
		return Serving{CA: trusted.CAData, Renew: renewal.Run, TLS: &tls.Config{
			MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2", "http/1.1"},
			GetCertificate: renewal.GetCertificate,
		}}, nil
	}
}

// ServingHere is SignedBy where the data directory holds the cluster's keys, as on a
// machine that runs an API server too, and SignedByCluster elsewhere: no machine makes an
// authority that nobody knows. renew keeps what it gave.
func ServingHere(ctx context.Context, c *process.Component) (serving ServingOf, renew func(context.Context) error, err error) {
	o := c.Options
	switch _, err := os.Stat(filepath.Join(o.Dir.PKI(), "ca.key")); {
	case errors.Is(err, fs.ErrNotExist):
		return SignedByCluster(ctx, o.Dir.Member(), c.Config, o.Logger), func(ctx context.Context) error { <-ctx.Done(); return nil }, nil
	case err != nil:
		return nil, nil, fmt.Errorf("look for the cluster's keys: %w", err)
	}
	authority, err := pki.Open(pki.Config{Dir: o.Dir.PKI(), ClusterDomain: o.Config.Cluster.Domain, Log: o.Logger})
	if err != nil {
		return nil, nil, err
	}
	return SignedBy(authority), authority.Run, nil
}
