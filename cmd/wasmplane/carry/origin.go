// SPDX-License-Identifier: Apache-2.0

package carry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/core/airgap"
)

// origin is where images are taken from.
type origin interface {
	// describe finds an image, and says what it is called in full.
	describe(ctx context.Context, image string) (airgap.Described, error)
	// open reads what an image consists of.
	open(ctx context.Context, image string, d v1.Descriptor) (io.ReadCloser, error)
}

// Registry says how registries are reached.
type Registry struct {
	// PlainHTTP are registries, HOST[:PORT], that are asked without TLS.
	PlainHTTP []string
	CAFile    string // of authorities besides the system's; "" = none
}

// registries are an origin.
type registries struct {
	Registry
	transport http.RoundTripper
}

func (r Registry) origin() (*registries, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if r.CAFile != "" {
		text, err := os.ReadFile(r.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--ca-file: %s holds no certificate in PEM", r.CAFile)
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &registries{r, tlsOnly{t, r.PlainHTTP}}, nil
}

// tlsOnly refuses to ask without TLS who was not named for that; the library would do so for local addresses.
type tlsOnly struct {
	http.RoundTripper
	plain []string
}

// RoundTrip implements http.RoundTripper.
func (t tlsOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !slices.Contains(t.plain, r.URL.Host) {
		return nil, fmt.Errorf("the registry %s would be asked without TLS: name it by --plain-http if that is right", r.URL.Host)
	}
	return t.RoundTripper.RoundTrip(r)
}

func (r *registries) reference(image string) (name.Reference, error) {
	ref, err := name.ParseReference(image)
	if err == nil && slices.Contains(r.PlainHTTP, ref.Context().RegistryStr()) {
		ref, err = name.ParseReference(image, name.Insecure)
	}
	return ref, err
}

func (r *registries) options(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithTransport(r.transport), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
}

func (r *registries) describe(ctx context.Context, image string) (airgap.Described, error) {
	ref, err := r.reference(image)
	if err != nil {
		return airgap.Described{}, err
	}
	d, err := remote.Head(ref, r.options(ctx)...)
	if err != nil {
		return airgap.Described{}, fmt.Errorf("ask for it: %w", err)
	}
	return airgap.Described{
		Image: airgap.Image{Name: image, Digest: d.Digest.String()}, MediaType: d.MediaType, Size: d.Size,
	}, nil
}

func (r *registries) open(ctx context.Context, image string, d v1.Descriptor) (io.ReadCloser, error) {
	ref, err := r.reference(image)
	if err != nil {
		return nil, err
	}
	digested := ref.Context().Digest(d.Digest.String())
	if d.MediaType.IsIndex() || d.MediaType.IsImage() {
		m, err := remote.Get(digested, r.options(ctx)...)
		if err != nil {
			return nil, fmt.Errorf("fetch %s: %w", digested, err)
		}
		return reader(m.Manifest), nil
	}
	l, err := remote.Layer(digested, r.options(ctx)...)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", digested, err)
	}
	return l.Compressed()
}

// node is an origin: the images of this machine's node.
type node struct{ *machine.Images }

func openNode(dir datadir.Dir) (*node, error) {
	store, err := machine.OpenImages(dir)
	if err != nil {
		return nil, err
	}
	return &node{store}, nil
}

func (n *node) describe(ctx context.Context, image string) (airgap.Described, error) {
	d, err := n.Describe(ctx, image)
	return airgap.Described{
		Image: airgap.Image{Name: d.Name, Digest: d.Digest}, MediaType: types.MediaType(d.MediaType), Size: d.Size,
	}, err
}

func (n *node) open(ctx context.Context, _ string, d v1.Descriptor) (io.ReadCloser, error) {
	return n.Content(ctx, d.Digest.String(), d.Size)
}

// errNothing is said where an archive would be empty.
var errNothing = errors.New("there is nothing to put into the archive: name images (--image, --images-from, --from-cluster), manifests (--manifest) or a configuration with plugins (--config)")
