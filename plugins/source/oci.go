// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/sign"
)

// The media types under which modules lie in registries.
const (
	// ConfigMedia and ModuleMedia are those of the Wasm OCI artifact layout, which Push writes.
	ConfigMedia types.MediaType = "application/vnd.wasm.config.v0+json"
	ModuleMedia types.MediaType = "application/wasm"
)

// layerMedia are the types of layers that hold a module.
var layerMedia = []types.MediaType{
	ModuleMedia,
	"application/vnd.wasm.content.layer.v1+wasm",        // Kubewarden and wasm-to-oci
	"application/vnd.module.wasm.content.layer.v1+wasm", // before there was an agreement
	"application/vnd.wasm.content.layer.v1+wasm-module",
}

// bundleMedia are the types of layers that hold a bundle of Open Policy Agent.
var bundleMedia = []types.MediaType{
	"application/vnd.oci.image.layer.v1.tar+gzip",
	"application/vnd.docker.image.rootfs.diff.tar.gzip",
}

// manifestLimit bounds a manifest, as registries do.
const manifestLimit = 4 << 20

// reference is an oci:// source taken apart.
type reference struct {
	repository name.Repository
	tag        string // "" = by digest alone
	manifest   string // "" = what the tag points at
}

func parse(source string, plain bool) (reference, error) {
	text := strings.TrimPrefix(source, "oci://")
	var how []name.Option
	if plain {
		how = append(how, name.Insecure)
	}
	at, digest, _ := strings.Cut(text, "@")
	r := reference{manifest: digest}
	ref, err := name.ParseReference(at, append(how, name.WithDefaultTag(""), name.StrictValidation)...)
	if err != nil && digest != "" {
		d, derr := name.NewDigest(text, how...)
		if derr != nil {
			return r, fmt.Errorf("source: %w", derr)
		}
		r.repository = d.Context()
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("source: expected oci://HOST/REPOSITORY:TAG@sha256:DIGEST: %w", err)
	}
	if digest != "" {
		if _, err := name.NewDigest(text, how...); err != nil {
			return r, fmt.Errorf("source: %w", err)
		}
	}
	r.repository, r.tag = ref.Context(), ref.Identifier()
	return r, nil
}

func (f *Fetcher) oci(ctx context.Context, e *manifest.Entry) (*Module, error) {
	ref, err := parse(e.Source, e.Fetch.PlainHTTP)
	if err != nil {
		return nil, err
	}
	reg := &registry{fetcher: f, entry: e, ref: ref, know: f.cache.about(e.Source)}
	defer reg.close()
	m, err := reg.module(ctx)
	if err != nil {
		return nil, err
	}
	if err := reg.verify(ctx, m); err != nil {
		return nil, err
	}
	if !m.Cached {
		reg.keep(m)
	}
	return m, nil
}

// registry is one fetch from a registry. It is asked only for what is not cached.
type registry struct {
	fetcher   *Fetcher
	entry     *manifest.Entry
	ref       reference
	know      known
	options   []remote.Option
	transport *http.Transport
}

func (r *registry) close() {
	if r.transport != nil {
		r.transport.CloseIdleConnections()
	}
}

// open makes what is needed to talk to the registry.
func (r *registry) open(ctx context.Context) ([]remote.Option, error) {
	if r.options != nil {
		return append(slices.Clone(r.options), remote.WithContext(ctx)), nil
	}
	t, err := r.fetcher.transport(r.entry)
	if err != nil {
		return nil, err
	}
	auth, err := r.fetcher.authenticator(ctx, r.entry, r.ref.repository.RegistryStr())
	if err != nil {
		return nil, err
	}
	r.transport = t
	r.options = []remote.Option{
		remote.WithTransport(onlyTLS{t, r.entry.Fetch.PlainHTTP, r.ref.repository.RegistryStr()}),
		remote.WithAuth(auth),
	}
	return append(slices.Clone(r.options), remote.WithContext(ctx)), nil
}

// onlyTLS refuses requests without TLS, to the configured registry or to others
// that it refers to. The client library would fall back to it for local addresses.
type onlyTLS struct {
	http.RoundTripper
	plain    bool
	registry string
}

// RoundTrip implements http.RoundTripper.
func (o onlyTLS) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !(o.plain && r.URL.Host == o.registry) {
		return nil, fmt.Errorf("%s would be asked without TLS; fetch.plainHTTP: true allows that for the registry of the source", r.URL.Host)
	}
	return o.RoundTripper.RoundTrip(r)
}

func (r *registry) module(ctx context.Context) (*Module, error) {
	limit := int64(r.entry.Fetch.MaxSize)
	if r.entry.Digest != "" && r.ref.manifest == "" {
		// The module is pinned, not the manifest: what is cached will do, as long as
		// no signature of the manifest is wanted that nobody knows.
		if wasm, ok := r.fetcher.cache.blob(r.entry.Digest, limit); ok {
			switch {
			case r.remembers(r.entry.Digest):
				return &Module{Wasm: wasm, Digest: r.entry.Digest, Manifest: r.know.Manifest, Cached: true}, nil
			case len(r.entry.Signatures) == 0:
				return &Module{Wasm: wasm, Digest: r.entry.Digest, Cached: true}, nil
			}
		}
	}
	raw, digest, cached, err := r.manifest(ctx, r.ref.manifest)
	if err != nil {
		return nil, err
	}
	layer, err := r.layer(ctx, raw)
	if err != nil {
		return nil, err
	}
	if layer.Size > limit {
		return nil, &limitError{"fetch.maxSize", fmt.Sprintf("fetch %s: the module has %d bytes: at most %d are allowed (fetch.maxSize)",
			r.entry.Source, layer.Size, limit)}
	}
	m := &Module{Digest: layer.Digest.String(), Manifest: digest}
	if r.entry.Digest != "" && m.Digest != r.entry.Digest {
		return m, nil // Fetch says so; there is no need to download it
	}
	if wasm, ok := r.fetcher.cache.blob(m.Digest, limit); ok {
		m.Wasm, m.Cached = wasm, cached
		return m, nil
	}
	m.Wasm, err = r.blob(ctx, m.Digest, limit)
	return m, err
}

// remembers says whether the manifest that the source led to before is of the
// module with the digest. It may have been another module's: its signatures say nothing of this one then.
func (r *registry) remembers(digest string) bool {
	raw, ok := r.fetcher.cache.blob(r.know.Manifest, manifestLimit)
	if !ok {
		return false
	}
	if index, err := v1.ParseIndexManifest(bytes.NewReader(raw)); err == nil && len(index.Manifests) > 0 {
		d, err := wasmOf(index)
		if err != nil {
			return false
		}
		if raw, ok = r.fetcher.cache.blob(d.Digest.String(), manifestLimit); !ok {
			return false
		}
	}
	layer, err := r.layerOf(raw)
	return err == nil && layer.Digest.String() == digest
}

// manifest reads the manifest with a digest, or the one that the tag points at.
func (r *registry) manifest(ctx context.Context, digest string) (raw []byte, actual string, cached bool, err error) {
	if digest != "" {
		if raw, ok := r.fetcher.cache.blob(digest, manifestLimit); ok {
			return raw, digest, true, nil
		}
	}
	options, err := r.open(ctx)
	if err != nil {
		return nil, "", false, err
	}
	var ref name.Reference = r.ref.repository.Digest(digest)
	if digest == "" {
		ref = r.ref.repository.Tag(r.ref.tag)
	}
	d, err := remote.Get(ref, options...)
	if err != nil {
		return nil, "", false, fmt.Errorf("fetch %s: %w", r.entry.Source, err)
	}
	if err := r.fetcher.cache.put(d.Manifest); err != nil {
		r.fetcher.cfg.Logger.WarnContext(ctx, "a fetched manifest is not kept, so that a restart needs the registry", "plugin", r.entry.Name,
			"error", err)
	}
	return d.Manifest, d.Digest.String(), false, nil
}

// layer finds the module in a manifest, or in the one manifest of an index that is for Wasm.
func (r *registry) layer(ctx context.Context, raw []byte) (*v1.Descriptor, error) {
	if index, err := v1.ParseIndexManifest(bytes.NewReader(raw)); err == nil && len(index.Manifests) > 0 {
		d, err := wasmOf(index)
		if err != nil {
			return nil, fmt.Errorf("fetch %s: %w", r.entry.Source, err)
		}
		if raw, _, _, err = r.manifest(ctx, d.Digest.String()); err != nil {
			return nil, err
		}
	}
	return r.layerOf(raw)
}

// layerOf is the one layer of a manifest that holds a module.
func (r *registry) layerOf(raw []byte) (*v1.Descriptor, error) {
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("fetch %s: the manifest cannot be read: %w", r.entry.Source, err)
	}
	wanted := layerMedia
	if r.entry.Bundle != nil {
		wanted = bundleMedia
	}
	var found []*v1.Descriptor
	var types []string
	for i := range m.Layers {
		types = append(types, string(m.Layers[i].MediaType))
		if slices.Contains(wanted, m.Layers[i].MediaType) {
			found = append(found, &m.Layers[i])
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("fetch %s: one layer of type %s was expected, found layers of type %v", r.entry.Source, wanted[0], types)
	}
	return found[0], nil
}

func wasmOf(index *v1.IndexManifest) (*v1.Descriptor, error) {
	var found []*v1.Descriptor
	for i := range index.Manifests {
		if p := index.Manifests[i].Platform; p != nil && p.Architecture == "wasm" {
			found = append(found, &index.Manifests[i])
		}
	}
	if len(index.Manifests) == 1 {
		return &index.Manifests[0], nil
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("it is an index of %d manifests, %d of which are for wasm; name one by its digest", len(index.Manifests), len(found))
	}
	return found[0], nil
}

func (r *registry) blob(ctx context.Context, digest string, limit int64) ([]byte, error) {
	options, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	var last error
	for range tries {
		b, err := readLayer(r.ref.repository.Digest(digest), limit, options)
		if err == nil {
			return b, r.fetcher.cache.put(b)
		}
		if last = err; ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("fetch %s: %w", r.entry.Source, last)
}

func readLayer(d name.Digest, limit int64, options []remote.Option) ([]byte, error) {
	layer, err := remote.Layer(d, options...)
	if err != nil {
		return nil, err
	}
	body, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	b, err := readAll(body, limit, d.String())
	if err == nil && Digest(b) != d.DigestStr() {
		err = fmt.Errorf("%d bytes came that do not have the digest %s: the download is truncated or was changed", len(b), d.DigestStr())
	}
	return b, err
}

// verify holds the manifest's signatures against those that the entry asks for.
func (r *registry) verify(ctx context.Context, m *Module) error {
	if len(r.entry.Signatures) == 0 {
		return nil
	}
	digest := r.ref.repository.Digest(m.Manifest)
	found := r.know.Signatures
	err := r.verifyAll(digest, found)
	if err != nil || r.know.Manifest != m.Manifest {
		options, oerr := r.open(ctx)
		if oerr != nil {
			return oerr
		}
		fresh, ferr := sign.Find(ctx, digest, options...)
		if ferr != nil {
			return ferr
		}
		found, m.Cached = fresh, false
		err = r.verifyAll(digest, found)
	}
	if err != nil {
		return err
	}
	r.know.Signatures, m.Verified = found, true
	return nil
}

func (r *registry) verifyAll(digest name.Digest, found []sign.Signature) error {
	for _, want := range r.entry.Signatures {
		keys, err := r.fetcher.keys(want)
		if err != nil {
			return err
		}
		if err := sign.Verify(digest.String(), digest.DigestStr(), found, keys, want.Annotations); err != nil {
			return err
		}
	}
	return nil
}

// keep remembers what the source led to, for a start without the registry.
func (r *registry) keep(m *Module) {
	r.know.Manifest = m.Manifest
	if err := r.fetcher.cache.remember(r.know); err != nil {
		r.fetcher.cfg.Logger.Warn("a restart needs the registry", "plugin", r.entry.Name, "error", err)
	}
}

// Moved asks the registry whether the tag of a source still points at what is
// pinned. It returns the digest that it points at now, "" where it has not moved, or where there is no tag.
func (f *Fetcher) Moved(ctx context.Context, e *manifest.Entry) (string, error) {
	if e.Kind() != "oci" {
		return "", nil
	}
	ref, err := parse(e.Source, e.Fetch.PlainHTTP)
	if err != nil || ref.tag == "" {
		return "", err
	}
	reg := &registry{fetcher: f, entry: e, ref: ref, know: f.cache.about(e.Source)}
	defer reg.close()
	options, err := reg.open(ctx)
	if err != nil {
		return "", err
	}
	d, err := remote.Get(ref.repository.Tag(ref.tag), options...)
	if err != nil {
		return "", fmt.Errorf("look where the tag of %s points: %w", e.Source, err)
	}
	now := d.Digest.String()
	if ref.manifest != "" {
		if now == ref.manifest {
			return "", nil
		}
		return now, nil
	}
	layer, err := reg.layer(ctx, d.Manifest)
	if err != nil {
		return "", err
	}
	if layer.Digest.String() == e.Digest {
		return "", nil
	}
	return now, nil
}

// authenticator finds the credentials of a registry: a Secret's, else a docker config's.
func (f *Fetcher) authenticator(ctx context.Context, e *manifest.Entry, registry string) (authn.Authenticator, error) {
	var text []byte
	data, err := f.secret(ctx, e)
	switch {
	case err != nil:
		return nil, err
	case data != nil && data["username"] != nil:
		return &authn.Basic{Username: string(data["username"]), Password: string(data["password"])}, nil
	case data != nil:
		if text = data[".dockerconfigjson"]; text == nil {
			return nil, fmt.Errorf("fetch.secret: %s holds neither .dockerconfigjson nor username and password", e.Fetch.Secret)
		}
	case e.Fetch.DockerConfig != "":
		if text, err = os.ReadFile(f.relative(e.Fetch.DockerConfig)); err != nil {
			return nil, fmt.Errorf("fetch.dockerConfig: %w", err)
		}
	default:
		return authn.Anonymous, nil
	}
	auths, err := dockerAuths(text)
	if err != nil {
		return nil, fmt.Errorf("the credentials of %s: %w", registry, err)
	}
	for _, host := range []string{registry, strings.TrimPrefix(registry, "index.")} {
		if c, ok := auths[host]; ok {
			return &authn.Basic{Username: c.username, Password: c.password}, nil
		}
	}
	return authn.Anonymous, nil
}

// errNoPush is what Push answers for references that cannot be pushed to.
var errNoPush = errors.New("push to a tag: oci://HOST/REPOSITORY:TAG")
