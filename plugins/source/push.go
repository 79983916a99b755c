// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Open says how the registry of an entry's source is reached: its repository, the
// tag, and the options for the client library. It is for tools that push, pull and sign.
func (f *Fetcher) Open(ctx context.Context,
	e *manifest.Entry,
) (repository name.Repository, tag string, options []remote.Option, err error) {
	ref, err := parse(e.Source, e.Fetch.PlainHTTP)
	if err != nil {
		return ref.repository, "", nil, err
	}
	options, err = (&registry{fetcher: f, entry: e, ref: ref}).open(ctx)
	return ref.repository, ref.tag, options, err
}

// Push puts a module under the tag of an entry's source, as a Wasm OCI artifact. It
// returns the manifest's digest, which pins it. The same module and annotations
// have the same digest.
func (f *Fetcher) Push(ctx context.Context, e *manifest.Entry, wasm []byte, annotations map[string]string) (string, error) {
	repository, tag, options, err := f.Open(ctx, e)
	if err != nil {
		return "", err
	}
	if tag == "" {
		return "", errNoPush
	}
	module := static.NewLayer(wasm, ModuleMedia)
	layer, err := descriptor(module)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]any{"architecture": "wasm", "os": "wasip1", "layerDigests": []string{layer.Digest.String()}})
	if err != nil {
		return "", err
	}
	config := static.NewLayer(text, ConfigMedia)
	about, err := descriptor(config)
	if err != nil {
		return "", err
	}
	raw, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: about, Layers: []v1.Descriptor{layer}, Annotations: annotations,
	})
	if err != nil {
		return "", err
	}
	for _, l := range []v1.Layer{module, config} {
		if err := remote.WriteLayer(repository, l, options...); err != nil {
			return "", fmt.Errorf("push %s: %w", e.Source, err)
		}
	}
	if err := remote.Put(repository.Tag(tag), artifact(raw), slices.Clone(options)...); err != nil {
		return "", fmt.Errorf("push %s: %w", e.Source, err)
	}
	return Digest(raw), nil
}

func descriptor(l v1.Layer) (v1.Descriptor, error) {
	d, err := l.Digest()
	if err != nil {
		return v1.Descriptor{}, err
	}
	size, err := l.Size()
	if err != nil {
		return v1.Descriptor{}, err
	}
	media, err := l.MediaType()
	return v1.Descriptor{MediaType: media, Size: size, Digest: d}, err
}

// artifact is an encoded manifest.
type artifact []byte

// RawManifest implements remote.Taggable.
func (a artifact) RawManifest() ([]byte, error) { return a, nil }

// MediaType says what it is.
func (a artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
