// SPDX-License-Identifier: Apache-2.0

// Package distribution hands modules to others and takes them: push, pull, sign and
// verify, in registries and in files. What does not load is not pushed, and what is
// pulled is pinned by its digest.
package distribution

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/sign"
	"github.com/wasmplane/wasmplane/plugins/source"
)

// Registry says how registries are reached.
type Registry struct {
	PlainHTTP    bool
	CAFile       string
	DockerConfig string // empty: $DOCKER_CONFIG/config.json or ~/.docker/config.json, where there is one
}

// entry makes the entry of a reference (oci://HOST/REPOSITORY:TAG, the scheme may be left out).
func (r Registry) entry(ref string) *manifest.Entry {
	if !strings.Contains(ref, "://") {
		ref = "oci://" + ref
	}
	e := &manifest.Entry{Name: "plugin", Source: ref, Fetch: manifest.Fetch{
		PlainHTTP: r.PlainHTTP, CAFile: r.CAFile, DockerConfig: r.DockerConfig, Timeout: manifest.Duration(time.Minute), MaxSize: 32 << 20,
	}}
	if e.Fetch.DockerConfig == "" {
		dir := os.Getenv("DOCKER_CONFIG")
		if home, err := os.UserHomeDir(); dir == "" && err == nil {
			dir = filepath.Join(home, ".docker")
		}
		if path := filepath.Join(dir, "config.json"); dir != "" {
			if _, err := os.Stat(path); err == nil {
				e.Fetch.DockerConfig = path
			}
		}
	}
	return e
}

func fetcher() (*source.Fetcher, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	return source.New(source.Config{Dir: dir})
}

// Pushed is where a module lies.
type Pushed struct {
	// Source pins the manifest; it can stand in an entry as it is.
	Source string `json:"source"`
	Digest string `json:"digest"` // of the manifest
	Module string `json:"module"` // digest of the module
}

// Push puts a plugin's module into a registry.
func (r Registry) Push(ctx context.Context, cfg author.Config, ref string) (*Pushed, error) {
	wasm, err := moduleOf(cfg)
	if err != nil {
		return nil, err
	}
	annotations := map[string]string{"org.opencontainers.image.title": cfg.Entry.Name}
	p, err := author.Open(ctx, cfg) // what does not load is not handed to others
	if err != nil {
		return nil, err
	}
	if v := p.Manifest().Version; v != "" {
		annotations["org.opencontainers.image.version"] = v
	}
	if err := p.Close(ctx); err != nil {
		return nil, err
	}
	f, err := fetcher()
	if err != nil {
		return nil, err
	}
	e := r.entry(ref)
	digest, err := f.Push(ctx, e, wasm, annotations)
	if err != nil {
		return nil, err
	}
	return &Pushed{Source: e.Source + "@" + digest, Digest: digest, Module: source.Digest(wasm)}, nil
}

func moduleOf(cfg author.Config) ([]byte, error) {
	path, ok := strings.CutPrefix(cfg.Entry.Source, "file:")
	if !ok {
		return nil, fmt.Errorf("the entry's source is %s: a local module was expected", cfg.Entry.Source)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(cfg.Dir, path)
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the module: %w; build it with: wasmplane plugin build", err)
	}
	return b, err
}

// pinned finds the digest at which a reference points now, where it names only a tag.
func (r Registry) pinned(ctx context.Context, f *source.Fetcher, ref string) (*manifest.Entry, name.Digest, error) {
	e := r.entry(ref)
	repository, tag, options, err := f.Open(ctx, e)
	if err != nil {
		return nil, name.Digest{}, err
	}
	if _, digest, ok := strings.Cut(e.Source, "@"); ok {
		return e, repository.Digest(digest), nil
	}
	if tag == "" {
		return nil, name.Digest{}, fmt.Errorf("%s names neither a tag nor a digest", e.Source)
	}
	d, err := remote.Head(repository.Tag(tag), options...)
	if err != nil {
		return nil, name.Digest{}, fmt.Errorf("look up %s: %w", e.Source, err)
	}
	e.Source += "@" + d.Digest.String()
	return e, repository.Digest(d.Digest.String()), nil
}

// Pull fetches a module into a file. keys are files of public keys, one of which
// must have signed it; none = no signature is asked for. A tag is resolved; what it resolved to is answered.
func (r Registry) Pull(ctx context.Context, ref, out string, keys []string) (*Pushed, error) {
	f, err := fetcher()
	if err != nil {
		return nil, err
	}
	e, d, err := r.pinned(ctx, f, ref)
	if err != nil {
		return nil, err
	}
	if len(keys) > 0 {
		e.Signatures = []manifest.Signature{{Keys: keys}}
	}
	m, err := f.Fetch(ctx, e)
	if err != nil {
		return nil, err
	}
	if out != "" {
		if err := os.WriteFile(out, m.Wasm, 0o644); err != nil {
			return nil, fmt.Errorf("write the module: %w", err)
		}
	}
	return &Pushed{Source: e.Source, Digest: d.DigestStr(), Module: m.Digest}, nil
}

// Sign signs a module by a private key: in a registry, beside it; a file, in FILE.sig.
// It returns where the signature is.
func (r Registry) Sign(ctx context.Context, target, keyFile string, password []byte) (string, error) {
	text, err := os.ReadFile(keyFile)
	if err != nil {
		return "", fmt.Errorf("read the key: %w", err)
	}
	key, err := sign.ParsePrivateKey(text, password)
	if err != nil {
		return "", fmt.Errorf("key %s: %w", keyFile, err)
	}
	if module, err := os.ReadFile(target); err == nil {
		s, err := sign.SignFile(key, module)
		if err != nil {
			return "", err
		}
		return target + ".sig", os.WriteFile(target+".sig", s, 0o644)
	}
	f, err := fetcher()
	if err != nil {
		return "", err
	}
	e, d, err := r.pinned(ctx, f, target)
	if err != nil {
		return "", err
	}
	_, _, options, err := f.Open(ctx, e)
	if err != nil {
		return "", err
	}
	if err := sign.Sign(ctx, d, key, nil, options...); err != nil {
		return "", fmt.Errorf("sign %s: %w", e.Source, err)
	}
	return sign.Tag(d).String(), nil
}

// Verify checks that one of some keys signed a module. It returns what was verified.
func (r Registry) Verify(ctx context.Context, target string, keyFiles []string) (string, error) {
	module, err := os.ReadFile(target)
	if err != nil { // no file: a reference
		p, err := r.Pull(ctx, target, "", keyFiles)
		if err != nil {
			return "", err
		}
		return p.Source, nil
	}
	var keys []crypto.PublicKey
	for _, path := range keyFiles {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("read the key: %w", err)
		}
		found, err := sign.ParsePublicKeys(text)
		if err != nil {
			return "", fmt.Errorf("key %s: %w", path, err)
		}
		keys = append(keys, found...)
	}
	signature, err := os.ReadFile(target + ".sig")
	if err != nil {
		return "", fmt.Errorf("read the signature: %w", err)
	}
	return target + " (" + source.Digest(module) + ")", sign.VerifyFile(target, module, signature, keys)
}

// GenerateKey makes a pair of keys: PREFIX.key, for its owner only and not
// encrypted, and PREFIX.pub. It writes over nothing.
func GenerateKey(prefix string) (private, public string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", err
	}
	open, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return "", "", err
	}
	private, public = prefix+".key", prefix+".pub"
	for _, f := range []struct {
		path, kind string
		mode       os.FileMode
		content    []byte
	}{{private, "PRIVATE KEY", 0o600, secret}, {public, "PUBLIC KEY", 0o644, open}} {
		file, err := os.OpenFile(f.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, f.mode)
		if err != nil {
			return "", "", fmt.Errorf("write the key: %w", err)
		}
		if err := errors.Join(pem.Encode(file, &pem.Block{Type: f.kind, Bytes: f.content}), file.Close()); err != nil {
			return "", "", fmt.Errorf("write the key: %w", err)
		}
	}
	return private, public, nil
}
