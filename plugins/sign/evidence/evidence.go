// SPDX-License-Identifier: Apache-2.0

// Package evidence finds what registries hold about an image: signatures and attestations as cosign writes them
// (under the tags sha256-DIGEST.sig and .att), and Sigstore bundles that refer to the image. It reads
// them, and judges none: who may sign is for package trust.
//
// Everything that is read is bounded: each answer, each image's evidence as a whole, and the time,
// by the caller's context. The caller's transport says which addresses may be connected to.
// What is found about a digest is remembered for some minutes, and that there is nothing for some
// seconds, so that an image that was just signed need not wait.
package evidence

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Media types of what is looked at, and cosign's names of its annotations.
const (
	payloadMedia  types.MediaType = "application/vnd.dev.cosign.simplesigning.v1+json"
	envelopeMedia types.MediaType = "application/vnd.dsse.envelope.v1+json"
	bundleMedia                   = "application/vnd.dev.sigstore.bundle"

	noteSignature   = "dev.cosignproject.cosign/signature"
	noteCertificate = "dev.sigstore.cosign/certificate"
	noteChain       = "dev.sigstore.cosign/chain"
	noteLog         = "dev.sigstore.cosign/bundle"
	noteTime        = "dev.sigstore.cosign/rfc3161timestamp"
)

// Bounds.
const (
	answerLimit   = 8 << 20  // bytes of one answer
	evidenceLimit = 32 << 20 // bytes of an image's evidence
	mostOfAKind   = 64       // signatures, attestations, or bundles
	mostKept      = 256      // answers that are remembered
	mostBytes     = 64 << 20 // of them together: who names an image chooses how much there is about it
	keptFor       = 5 * time.Minute
	absentFor     = 5 * time.Second // nothing was found; or where a tag points
)

// Registry is how a registry is reached.
type Registry struct {
	// Transport connects by the policy of who asks.
	Transport http.RoundTripper
	// Auth are the credentials; nil = none. Key tells them from others: what was found with some is shown to nobody
	// who has others.
	Auth authn.Authenticator
	Key  string
	// PlainHTTP: without TLS.
	PlainHTTP bool
	// Turn waits until the registry may be asked; nil = at once. What is remembered needs none.
	Turn func(context.Context) (done func(), err error)
}

// Proof is what stands beside a signature.
type Proof struct {
	Certificate, Chain []byte // PEM; empty where it was made by a key
	Log                []byte // cosign's bundle: the entry in a transparency log, as JSON
	Time               []byte // an RFC 3161 timestamp in cosign's JSON
}

// Signature is one of a payload that names the image.
type Signature struct {
	Payload, Signature []byte
	Proof
}

// Attestation is a DSSE envelope.
type Attestation struct {
	Envelope []byte
	Proof
}

// Found is what is there about one image.
type Found struct {
	Signatures   []Signature
	Attestations []Attestation
	Bundles      [][]byte // Sigstore bundles as JSON
	size         int64
}

func (f *Found) none() bool { return len(f.Signatures)+len(f.Attestations)+len(f.Bundles) == 0 }

// Store looks up, and remembers. It is safe for concurrent use.
type Store struct {
	mu     sync.Mutex
	memory map[string]memory
	bytes  int64
}

type memory struct {
	until time.Time
	value any
	bytes int64
}

// New makes a store.
func New() *Store { return &Store{memory: map[string]memory{}} }

// Parse reads an image's reference, as nodes do: one without a registry is Docker Hub's.
func Parse(image string, plainHTTP bool) (name.Reference, error) {
	var how []name.Option
	if plainHTTP {
		how = append(how, name.Insecure)
	}
	ref, err := name.ParseReference(image, how...)
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", image, err)
	}
	return ref, nil
}

func (r Registry) options(ctx context.Context) []remote.Option {
	auth := r.Auth
	if auth == nil {
		auth = authn.Anonymous
	}
	return []remote.Option{
		remote.WithContext(ctx), remote.WithTransport(r.transport()), remote.WithAuth(auth),
		remote.WithRetryPredicate(func(error) bool { return false }), // somebody waits for the answer
	}
}

// Resolve is the digest of what a reference points at now; that of the index, where there are several platforms.
func (s *Store) Resolve(ctx context.Context, image string, r Registry) (name.Digest, error) {
	ref, err := Parse(image, r.PlainHTTP)
	if err != nil {
		return name.Digest{}, err
	}
	if d, pinned := ref.(name.Digest); pinned {
		return d, nil
	}
	digest, err := remember(ctx, s, r, "digest "+r.Key+" "+ref.Name(), func() (string, time.Duration, error) {
		d, err := remote.Head(ref, r.options(ctx)...)
		if err == nil {
			return d.Digest.String(), absentFor, nil
		}
		found, err := remote.Get(ref, r.options(ctx)...) // registries need not answer HEAD
		if err != nil {
			return "", 0, fmt.Errorf("look up %s: %w", ref, err)
		}
		return found.Digest.String(), absentFor, nil
	})
	return ref.Context().Digest(digest), err
}

// Of is what there is about an image. place is the repository that has it; the zero value = the image's own.
func (s *Store) Of(ctx context.Context, d name.Digest, place name.Repository, r Registry) (*Found, error) {
	if place == (name.Repository{}) {
		place = d.Context()
	}
	return remember(ctx, s, r, "evidence "+r.Key+" "+place.Name()+" "+d.Name(), func() (*Found, time.Duration, error) {
		f := &Found{}
		for _, read := range []func(context.Context, name.Digest, name.Repository, Registry) error{f.signatures, f.attestations, f.bundles} {
			if err := read(ctx, d, place, r); err != nil {
				return nil, 0, fmt.Errorf("look for signatures of %s: %w", d, err)
			}
		}
		if f.none() {
			return f, absentFor, nil
		}
		return f, keptFor, nil
	})
}

// remember answers from memory, or looks up. Failures are not remembered.
func remember[T any](ctx context.Context, s *Store, r Registry, key string, look func() (T, time.Duration, error)) (T, error) {
	if v, ok := kept[T](s, key); ok {
		return v, nil
	}
	if r.Turn != nil {
		done, err := r.Turn(ctx)
		if err != nil {
			return *new(T), fmt.Errorf("wait for other lookups: %w", err)
		}
		defer done()
		if v, ok := kept[T](s, key); ok { // one of those was the same
			return v, nil
		}
	}
	v, lasts, err := look()
	if err != nil {
		return v, err
	}
	s.keep(key, memory{time.Now().Add(lasts), v, sizeOf(v)})
	return v, nil
}

// keep remembers an answer, and forgets what takes most room if there is too much.
func (s *Store) keep(key string, m memory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(key)
	s.memory[key] = m
	s.bytes += m.bytes
	for now := time.Now(); len(s.memory) > mostKept || s.bytes > mostBytes; {
		var largest string
		for key, m := range s.memory {
			if !now.Before(m.until) {
				largest = key
				break
			}
			if largest == "" || m.bytes > s.memory[largest].bytes {
				largest = key
			}
		}
		s.forget(largest)
	}
}

func (s *Store) forget(key string) {
	s.bytes -= s.memory[key].bytes
	delete(s.memory, key)
}

// sizeOf is about what an answer takes.
func sizeOf(v any) int64 {
	const small = 1 << 10
	switch v := v.(type) {
	case *Found:
		return small + v.size
	case []byte:
		return small + int64(len(v))
	}
	return small
}

// kept is what is remembered under a key, while it lasts.
func kept[T any](s *Store, key string) (v T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.memory[key]
	v, ok = m.value.(T)
	return v, ok && time.Now().Before(m.until)
}

func tag(d name.Digest, place name.Repository, suffix string) name.Tag {
	return place.Tag(strings.Replace(d.DigestStr(), ":", "-", 1) + suffix)
}

func (f *Found) signatures(ctx context.Context, d name.Digest, place name.Repository, r Registry) error {
	return f.layers(ctx, tag(d, place, ".sig"), payloadMedia, r, func(content []byte, notes map[string]string) {
		signature, err := base64.StdEncoding.DecodeString(notes[noteSignature])
		if err == nil && len(signature) > 0 {
			f.Signatures = append(f.Signatures, Signature{content, signature, proof(notes)})
		}
	})
}

func (f *Found) attestations(ctx context.Context, d name.Digest, place name.Repository, r Registry) error {
	return f.layers(ctx, tag(d, place, ".att"), envelopeMedia, r, func(content []byte, notes map[string]string) {
		f.Attestations = append(f.Attestations, Attestation{content, proof(notes)})
	})
}

func proof(notes map[string]string) Proof {
	bytesOf := func(key string) []byte {
		if notes[key] == "" {
			return nil
		}
		return []byte(notes[key])
	}
	return Proof{bytesOf(noteCertificate), bytesOf(noteChain), bytesOf(noteLog), bytesOf(noteTime)}
}

// bundles reads what refers to the image and says that it is a Sigstore bundle.
func (f *Found) bundles(ctx context.Context, d name.Digest, place name.Repository, r Registry) error {
	index, err := remote.Referrers(place.Digest(d.DigestStr()), r.options(ctx)...)
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	list, err := index.IndexManifest()
	if err != nil {
		return err
	}
	n := 0
	for _, m := range list.Manifests {
		if !strings.HasPrefix(m.ArtifactType, bundleMedia) && m.ArtifactType != string(payloadMedia) && m.ArtifactType != "" {
			continue
		}
		if n++; n > mostOfAKind {
			return tooMany("manifests that refer to it")
		}
		if err := f.layers(ctx, place.Digest(m.Digest.String()), "", r, func(content []byte, _ map[string]string) {
			f.Bundles = append(f.Bundles, content)
		}); err != nil {
			return err
		}
		if len(f.Bundles) > mostOfAKind { // of how many manifests they are makes no difference
			return tooMany("bundles")
		}
	}
	return nil
}

func tooMany(what string) error { return fmt.Errorf("there are more than %d %s", mostOfAKind, what) }

// layers reads the layers of a manifest that are of a media type; "" = those of bundles.
func (f *Found) layers(ctx context.Context, ref name.Reference, media types.MediaType, r Registry,
	take func([]byte, map[string]string),
) error {
	d, err := remote.Get(ref, r.options(ctx)...)
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	m, err := v1.ParseManifest(strings.NewReader(string(d.Manifest)))
	if err != nil {
		return fmt.Errorf("%s: %w", ref, err)
	}
	if len(m.Layers) > mostOfAKind {
		return tooMany("layers at " + ref.Name())
	}
	for _, l := range m.Layers {
		if l.MediaType != media && (media != "" || !strings.HasPrefix(string(l.MediaType), bundleMedia)) {
			continue
		}
		content, err := f.blob(ctx, ref.Context().Digest(l.Digest.String()), l.Size, r)
		if err != nil {
			return fmt.Errorf("%s: %w", ref, err)
		}
		take(content, l.Annotations)
	}
	return nil
}

func (f *Found) blob(ctx context.Context, d name.Digest, size int64, r Registry) ([]byte, error) {
	if f.size += size; size < 0 || size > answerLimit || f.size > evidenceLimit {
		return nil, fmt.Errorf("it is more than %d bytes, or all of it more than %d", answerLimit, evidenceLimit)
	}
	layer, err := remote.Layer(d, r.options(ctx)...)
	if err != nil {
		return nil, err
	}
	body, err := layer.Compressed() // checks the digest while it is read
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	b, err := io.ReadAll(io.LimitReader(body, size+1))
	if err == nil && int64(len(b)) != size {
		err = fmt.Errorf("it has another size than the %d bytes that its manifest names", size)
	}
	return b, err
}

// absent: the registry has none, or no such endpoint.
func absent(err error) bool {
	var te *transport.Error
	return errors.As(err, &te) && (te.StatusCode == http.StatusNotFound || te.StatusCode == http.StatusMethodNotAllowed)
}

// Data is what a registry says of an image: its digest, manifest and configuration, and the index of its platforms, where it has one.
// Of several platforms linux/amd64 is described.
func (s *Store) Data(ctx context.Context, d name.Digest, r Registry) (map[string]any, error) {
	text, err := remember(ctx, s, r, "data "+r.Key+" "+d.Name(), func() ([]byte, time.Duration, error) {
		out, err := data(ctx, d, r)
		if err != nil {
			return nil, 0, fmt.Errorf("look up %s: %w", d, err)
		}
		text, err := json.Marshal(out)
		return text, keptFor, err
	})
	if err != nil {
		return nil, err
	}
	var out map[string]any // its own copy
	return out, json.Unmarshal(text, &out)
}

func data(ctx context.Context, d name.Digest, r Registry) (map[string]any, error) {
	desc, err := remote.Get(d, r.options(ctx)...)
	if err != nil {
		return nil, err
	}
	if desc.MediaType == types.DockerManifestSchema1 || desc.MediaType == types.DockerManifestSchema1Signed {
		return nil, errors.New("images of schema 1 have no configuration")
	}
	out := map[string]any{"digest": desc.Digest.String()}
	if desc.MediaType.IsIndex() {
		out["imageIndex"] = json.RawMessage(desc.Manifest)
	}
	img, err := desc.Image()
	if err != nil {
		return nil, err
	}
	manifest, err := img.RawManifest()
	if err != nil {
		return nil, err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return nil, err
	}
	out["manifest"], out["config"] = json.RawMessage(manifest), json.RawMessage(config)
	return out, nil
}
