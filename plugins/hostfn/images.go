// SPDX-License-Identifier: Apache-2.0

package hostfn

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/plugins/host"
)

// Images looks up images in their registries.
type Images interface {
	// Digest of what an image's reference points at now.
	Digest(ctx context.Context, image string, a ImageAccess) (string, error)
	// Manifest of an image, or the index where it has several platforms.
	Manifest(ctx context.Context, image string, a ImageAccess) (ImageManifest, error)
	// Config is the configuration of an image, of linux/amd64 where it has several platforms.
	Config(ctx context.Context, image string, a ImageAccess) (ImageConfigFile, error)
}

// ImageAccess says how a registry may be reached.
type ImageAccess struct{ PlainHTTP, Private bool }

// ImageManifest is a manifest as the registry has it.
type ImageManifest struct {
	Digest    string          `json:"digest"`
	MediaType string          `json:"mediaType"`
	Manifest  json.RawMessage `json:"manifest"`
}

// ImageConfigFile is a configuration with the digest of the manifest that names it.
type ImageConfigFile struct {
	Digest string          `json:"digest"`
	Config json.RawMessage `json:"config"`
}

type imageRequest struct {
	Image string `json:"image"`
}

type digestReply struct {
	Digest string `json:"digest"`
}

func (c *Caller) imageDigest(ctx context.Context, q imageRequest) (digestReply, error) {
	d, err := c.ImageDigest(ctx, q.Image)
	return digestReply{d}, err
}

func (c *Caller) imageManifest(ctx context.Context, q imageRequest) (ImageManifest, error) {
	return c.ImageManifest(ctx, q.Image)
}

func (c *Caller) imageConfig(ctx context.Context, q imageRequest) (ImageConfigFile, error) {
	return c.ImageConfig(ctx, q.Image)
}

// ImageDigest is the digest of what a reference points at.
func (c *Caller) ImageDigest(ctx context.Context, image string) (string, error) {
	a, err := c.imageAccess(ctx, image)
	if err != nil {
		return "", err
	}
	return c.f.backend.Images.Digest(ctx, image, a)
}

// ImageManifest is an image's manifest or index.
func (c *Caller) ImageManifest(ctx context.Context, image string) (ImageManifest, error) {
	a, err := c.imageAccess(ctx, image)
	if err != nil {
		return ImageManifest{}, err
	}
	return c.f.backend.Images.Manifest(ctx, image, a)
}

// ImageConfig is an image's configuration.
func (c *Caller) ImageConfig(ctx context.Context, image string) (ImageConfigFile, error) {
	a, err := c.imageAccess(ctx, image)
	if err != nil {
		return ImageConfigFile{}, err
	}
	return c.f.backend.Images.Config(ctx, image, a)
}

// imageAccess holds an image's registry against the grants.
func (c *Caller) imageAccess(ctx context.Context, image string) (ImageAccess, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return ImageAccess{}, fmt.Errorf("image: %w", err)
	}
	g := &c.e.Grants.Images
	registry := ref.Context().RegistryStr()
	plain := slices.Contains(g.PlainHTTP, registry)
	if !plain && !slices.ContainsFunc(g.Registries, func(p string) bool { return hostMatches(p, registry) }) {
		return ImageAccess{}, c.refused("look up images of "+registry, "images: {registries: ["+registry+"]}")
	}
	if err := c.mayNetwork(ctx, "images"); err != nil {
		return ImageAccess{}, err
	}
	if c.f.backend.Images == nil {
		return ImageAccess{}, notHere("way to look up images")
	}
	return ImageAccess{PlainHTTP: plain, Private: g.Private}, host.Charge(ctx, costOfConnection)
}

// NewImages looks images up over the network. What it found is remembered for a
// minute: a rollout asks for the same image for every pod. keychain holds the
// credentials; nil is none. Registries that must not be connected to are written down in the ledger.
func NewImages(keychain authn.Keychain, l *attempts.Ledger) Images {
	if keychain == nil {
		keychain = authn.NewMultiKeychain()
	}
	return &images{
		keychain: keychain, public: GuardedTransport(false, nil, l), private: GuardedTransport(true, nil, l),
		found: map[imageKey]found{},
	}
}

type images struct {
	keychain        authn.Keychain
	public, private http.RoundTripper

	mu    sync.Mutex
	found map[imageKey]found
}

type imageKey struct {
	what, image string
	access      ImageAccess
}

type found struct {
	until time.Time
	value any
}

// Bounds of what is remembered and read.
const (
	foundFor      = time.Minute
	mostFound     = 512
	manifestLimit = 4 << 20
)

// Digest implements Images.
func (i *images) Digest(ctx context.Context, image string, a ImageAccess) (string, error) {
	return remember(i, imageKey{"digest", image, a}, func() (string, error) {
		ref, options, err := i.open(ctx, image, a)
		if err != nil {
			return "", err
		}
		if d, err := remote.Head(ref, options...); err == nil {
			return d.Digest.String(), nil
		}
		d, err := remote.Get(ref, options...) // registries need not answer HEAD
		if err != nil {
			return "", fmt.Errorf("look up %s: %w", ref, err)
		}
		return d.Digest.String(), nil
	})
}

// Manifest implements Images.
func (i *images) Manifest(ctx context.Context, image string, a ImageAccess) (ImageManifest, error) {
	return remember(i, imageKey{"manifest", image, a}, func() (ImageManifest, error) {
		ref, options, err := i.open(ctx, image, a)
		if err != nil {
			return ImageManifest{}, err
		}
		d, err := remote.Get(ref, options...)
		if err != nil {
			return ImageManifest{}, fmt.Errorf("look up %s: %w", ref, err)
		}
		if !json.Valid(d.Manifest) {
			return ImageManifest{}, fmt.Errorf("look up %s: the manifest is no JSON", ref)
		}
		return ImageManifest{Digest: d.Digest.String(), MediaType: string(d.MediaType), Manifest: d.Manifest}, nil
	})
}

// Config implements Images.
func (i *images) Config(ctx context.Context, image string, a ImageAccess) (ImageConfigFile, error) {
	return remember(i, imageKey{"config", image, a}, func() (ImageConfigFile, error) {
		ref, options, err := i.open(ctx, image, a)
		if err != nil {
			return ImageConfigFile{}, err
		}
		d, err := remote.Get(ref, options...)
		if err != nil {
			return ImageConfigFile{}, fmt.Errorf("look up %s: %w", ref, err)
		}
		if d.MediaType == types.DockerManifestSchema1 || d.MediaType == types.DockerManifestSchema1Signed {
			return ImageConfigFile{}, fmt.Errorf("look up %s: images of schema 1 have no configuration", ref)
		}
		img, err := d.Image()
		if err != nil {
			return ImageConfigFile{}, fmt.Errorf("look up %s: %w", ref, err)
		}
		config, err := img.RawConfigFile()
		if err != nil {
			return ImageConfigFile{}, fmt.Errorf("read the configuration of %s: %w", ref, err)
		}
		digest, err := img.Digest()
		return ImageConfigFile{Digest: digest.String(), Config: config}, err
	})
}

func (i *images) open(ctx context.Context, image string, a ImageAccess) (name.Reference, []remote.Option, error) {
	var how []name.Option
	if a.PlainHTTP {
		how = append(how, name.Insecure)
	}
	ref, err := name.ParseReference(image, how...)
	if err != nil {
		return nil, nil, fmt.Errorf("image: %w", err)
	}
	transport := i.public
	if a.Private {
		transport = i.private
	}
	return ref, []remote.Option{
		remote.WithContext(ctx), remote.WithTransport(bounded{transport, manifestLimit}), remote.WithAuthFromKeychain(i.keychain),
		remote.WithRetryPredicate(func(error) bool { return false }), // the plugin's deadline is short
	}, nil
}

// bounded cuts answers off at a limit.
type bounded struct {
	http.RoundTripper
	limit int64
}

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = limited{io.LimitReader(resp.Body, b.limit), resp.Body}
	}
	return resp, err
}

type limited struct {
	io.Reader
	io.Closer
}

// remember answers from memory, or looks up. Failures are not remembered.
func remember[T any](i *images, key imageKey, look func() (T, error)) (T, error) {
	i.mu.Lock()
	f, ok := i.found[key]
	i.mu.Unlock()
	if ok && time.Now().Before(f.until) {
		return f.value.(T), nil
	}
	v, err := look()
	if err != nil {
		return v, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.found) >= mostFound {
		clear(i.found)
	}
	i.found[key] = found{time.Now().Add(foundFor), v}
	return v, nil
}
