// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/hostfn/keyless"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/imagepolicy"
	"github.com/wasmplane/wasmplane/plugins/sign/trust"
)

// RegistryTransports connect to registries of images: to those that policies of the cluster name, and to those that are named by
// whoever makes a pod, or by a policy of a namespace.
func RegistryTransports(o Options) (operators, tenants http.RoundTripper) {
	by := func(p dial.Policy) http.RoundTripper {
		// No proxy of the environment: it would connect in our place, wherever it is asked to.
		return p.Guard(&http.Transport{
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 4, MaxIdleConns: 32,
			IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: 10 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
		})
	}
	return by(*OperatorsDial(o)), by(*TenantsDial(o))
}

// TrustedRoot reads the configuration's root of trust, anew when its file has changed; nil where there is none. A file that cannot be
// read at the start is an error.
func TrustedRoot(o Options) (imagepolicy.Roots, error) {
	if o.Config.Sigstore.TrustedRoot == "" {
		return nil, nil
	}
	file := o.Config.Path(o.Config.Sigstore.TrustedRoot)
	var mu sync.Mutex
	var read time.Time
	var material root.TrustedMaterial
	current := func() (root.TrustedMaterial, error) {
		mu.Lock()
		defer mu.Unlock()
		info, err := os.Stat(file)
		if err == nil && material != nil && info.ModTime().Equal(read) {
			return material, nil
		}
		var text []byte
		if err == nil {
			text, err = os.ReadFile(file)
		}
		if err == nil {
			var fresh root.TrustedMaterial
			if fresh, err = trust.ParseRoot(text); err == nil {
				material, read = fresh, info.ModTime()
			}
		}
		if err != nil {
			return nil, fmt.Errorf("sigstore.trustedRoot: %w", err)
		}
		return material, nil
	}
	_, err := current()
	return current, err
}

// Signers says who signed images without a key, by the configuration's root of trust.
func Signers(o Options) (hostfn.Signers, error) {
	roots, err := TrustedRoot(o)
	return keyless.New(roots, o.Attempts), err
}

// Secrets reads Secrets.
func Secrets(kube kubernetes.Interface) func(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	return secrets(kube)
}
