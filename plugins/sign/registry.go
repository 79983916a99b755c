// SPDX-License-Identifier: Apache-2.0

package sign

import (
	"context"
	"crypto"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// What cosign calls its parts.
const (
	payloadMedia types.MediaType = "application/vnd.dev.cosign.simplesigning.v1+json"

	artifactMedia = "application/vnd.dev.cosign.artifact.sig.v1+json"
	signatureNote = "dev.cosignproject.cosign/signature"
)

// payloadLimit bounds one payload.
const payloadLimit = 64 << 10

// Tag is where the signatures of a manifest lie.
func Tag(d name.Digest) name.Tag {
	algorithm, hex, _ := strings.Cut(d.DigestStr(), ":")
	return d.Context().Tag(algorithm + "-" + hex + ".sig")
}

// Find reads the signatures of a manifest from its registry: those under the tag and
// those that are referrers. None is no error.
func Find(ctx context.Context, d name.Digest, options ...remote.Option) ([]Signature, error) {
	options = append(slices.Clone(options), remote.WithContext(ctx))
	found, err := at(Tag(d), options)
	if err != nil {
		return nil, err
	}
	referrers, err := remote.Referrers(d, append(options, remote.WithFilter("artifactType", artifactMedia))...)
	if err != nil {
		if absent(err) {
			return found, nil
		}
		return nil, fmt.Errorf("look for signatures of %s: %w", d, err)
	}
	index, err := referrers.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("look for signatures of %s: %w", d, err)
	}
	for i, m := range index.Manifests {
		if m.ArtifactType != "" && m.ArtifactType != artifactMedia {
			continue
		}
		if i == mostSignatures {
			break
		}
		more, err := at(d.Context().Digest(m.Digest.String()), options)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
}

// absent: the registry has none, or no such endpoint.
func absent(err error) bool {
	var te *transport.Error
	return errors.As(err, &te) && (te.StatusCode == http.StatusNotFound || te.StatusCode == http.StatusMethodNotAllowed)
}

// at reads the signatures that one manifest holds.
func at(ref name.Reference, options []remote.Option) ([]Signature, error) {
	d, err := remote.Get(ref, options...)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for signatures at %s: %w", ref, err)
	}
	m, err := v1.ParseManifest(strings.NewReader(string(d.Manifest)))
	if err != nil {
		return nil, fmt.Errorf("read the signatures at %s: %w", ref, err)
	}
	if len(m.Layers) > mostSignatures {
		return nil, fmt.Errorf("read the signatures at %s: there are %d, at most %d are looked at", ref, len(m.Layers), mostSignatures)
	}
	var out []Signature
	for _, l := range m.Layers {
		if l.MediaType != payloadMedia {
			continue
		}
		signature, err := base64.StdEncoding.DecodeString(l.Annotations[signatureNote])
		if err != nil || len(signature) == 0 {
			continue
		}
		payload, err := blob(ref.Context().Digest(l.Digest.String()), l.Size, options)
		if err != nil {
			return nil, fmt.Errorf("read the signatures at %s: %w", ref, err)
		}
		out = append(out, Signature{payload, signature})
	}
	return out, nil
}

func blob(d name.Digest, size int64, options []remote.Option) ([]byte, error) {
	if size > payloadLimit {
		return nil, fmt.Errorf("a payload of %d bytes is more than %d", size, payloadLimit)
	}
	layer, err := remote.Layer(d, options...)
	if err != nil {
		return nil, err
	}
	r, err := layer.Compressed() // checks the digest while it is read
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	b, err := io.ReadAll(io.LimitReader(r, payloadLimit+1))
	if err == nil && len(b) > payloadLimit {
		err = fmt.Errorf("a payload is more than %d bytes", payloadLimit)
	}
	return b, err
}

// Sign signs a manifest and puts the signature beside it, after those that are there.
func Sign(ctx context.Context, d name.Digest, key crypto.Signer, annotations map[string]string, options ...remote.Option) error {
	options = append(slices.Clone(options), remote.WithContext(ctx))
	payload, err := NewPayload(d.DigestStr(), d.Context().Name(), annotations)
	if err != nil {
		return err
	}
	signature, err := SignBytes(key, payload)
	if err != nil {
		return fmt.Errorf("sign %s: %w", d, err)
	}
	if err := attach(d, Signature{payload, signature}, options); err != nil {
		return fmt.Errorf("attach the signature of %s: %w", d, err)
	}
	return nil
}

func attach(d name.Digest, s Signature, options []remote.Option) error {
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	var config struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
		Config       any    `json:"config"`
		RootFS       struct {
			Type    string   `json:"type"`
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	before, err := remote.Get(Tag(d), options...)
	if err == nil {
		old, err := v1.ParseManifest(strings.NewReader(string(before.Manifest)))
		if err != nil {
			return err
		}
		m.Layers = old.Layers
	} else if !absent(err) {
		return err
	}
	m.Layers = append(m.Layers, v1.Descriptor{
		MediaType: payloadMedia, Size: int64(len(s.Payload)), Digest: hash(s.Payload),
		Annotations: map[string]string{signatureNote: base64.StdEncoding.EncodeToString(s.Signature)},
	})
	config.Config, config.RootFS.Type = struct{}{}, "layers"
	for _, l := range m.Layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.Digest.String())
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	m.Config = v1.Descriptor{MediaType: types.OCIConfigJSON, Size: int64(len(text)), Digest: hash(text)}
	for _, l := range []v1.Layer{static.NewLayer(s.Payload, payloadMedia), static.NewLayer(text, types.OCIConfigJSON)} {
		if err := remote.WriteLayer(d.Context(), l, options...); err != nil {
			return err
		}
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return remote.Put(Tag(d), Manifest{raw, types.OCIManifestSchema1}, options...)
}

// Manifest is an encoded manifest that can be put into a registry.
type Manifest struct {
	Raw  []byte
	Type types.MediaType
}

// RawManifest implements remote.Taggable.
func (m Manifest) RawManifest() ([]byte, error) { return m.Raw, nil }

// MediaType says what RawManifest is.
func (m Manifest) MediaType() (types.MediaType, error) { return m.Type, nil }

func hash(b []byte) v1.Hash {
	sum := sha256.Sum256(b)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}
