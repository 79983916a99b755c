// SPDX-License-Identifier: Apache-2.0

// Package source fetches modules: from local files, over https, and from OCI
// registries. What is not a local file is pinned by digest, and kept in a local
// cache under that digest, so that a restart needs neither registry nor network.
//
// Guarantees: what Fetch returns has the digest that the entry pins and the
// signatures that it asks for, wherever it came from; size and time are bounded; no
// redirect leads from https to anything else; a registry is asked without TLS only where the
// entry says so. What the cache holds is checked like what comes over the network.
package source

import (
	"context"
	"crypto"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/rego/bundle"
	"github.com/wasmplane/wasmplane/plugins/sign"
)

// Secrets reads the data of a Secret.
type Secrets func(ctx context.Context, namespace, name string) (map[string][]byte, error)

// Config configures a Fetcher.
type Config struct {
	// Dir is where relative paths start.
	Dir string
	// CacheDir keeps what was fetched; it is made with mode 0700. Empty = nothing is kept.
	CacheDir string
	// Secrets answers entries that name one; nil = nobody can.
	Secrets Secrets
	// Operators and Tenants say to which addresses sources may lead that operators name, in
	// the file or in Plugins of the cluster, and those of namespaces. nil = everywhere but to
	// metadata services, and the internet only.
	Operators, Tenants *dial.Policy
	Logger             *slog.Logger
}

// Fetcher fetches modules. It is safe for concurrent use.
type Fetcher struct {
	cfg   Config
	cache *cache
}

// Module is a fetched module.
type Module struct {
	Wasm   []byte
	Digest string // of the module itself
	// Manifest is the digest of the OCI manifest that names the module; "" for others.
	Manifest string
	// Cached: it was not fetched anew.
	Cached bool
	// Verified: the signatures that the entry asks for are there.
	Verified bool
	// Bundle is what Wasm holds, where the entry is of a bundle.
	Bundle *bundle.Bundle
	// Tag is what the server calls this state of a source that is followed.
	Tag string
}

// New makes a fetcher.
func New(cfg Config) (*Fetcher, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Operators == nil {
		p := dial.Operator(nil)
		cfg.Operators = &p
	}
	if cfg.Tenants == nil {
		p := dial.Public(nil, nil)
		cfg.Tenants = &p
	}
	c, err := openCache(cfg.CacheDir)
	if err != nil {
		return nil, err
	}
	return &Fetcher{cfg: cfg, cache: c}, nil
}

// Digest is the digest of a module's bytes, as entries pin it.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Fetch fetches, checks and verifies the module of an entry. A tenant is told no more of
// what it met than he needs; the log has the rest.
func (f *Fetcher) Fetch(ctx context.Context, e *manifest.Entry) (*Module, error) {
	m, err := f.fetchPinned(attempts.With(ctx, e.Subject()), e)
	if err != nil && e.Namespace != "" {
		f.cfg.Logger.WarnContext(ctx, "could not fetch the module of a plugin of a namespace", "plugin", e.Name, "namespace", e.Namespace,
			"source", e.Source, "error", err)
		err = forTenants(err)
	}
	return m, err
}

// forTenants leaves of an error what is about the entry or a limit: not what answers
// where, with which words.
func forTenants(err error) error {
	var limit *limitError
	var secret *secretError
	var signature *sign.Error
	var digest *digestError
	var wrong *bundle.Error
	switch {
	case errors.As(err, &wrong):
		return wrong
	case errors.As(err, &limit):
		return limit
	case errors.As(err, &secret):
		return secret
	case errors.As(err, &signature):
		return errors.New("fetch the module: the signatures that the entry asks for are not there, or do not count")
	case errors.As(err, &digest):
		return errors.New("fetch the module: it has another digest than the entry pins")
	}
	// The same words whether nobody answers or the policy refuses the address: the difference would say
	// which names lead into the network.
	return errors.New("fetch the module: not reachable: sources of a namespace's plugins are on the internet, or where the operator allows it (egress.tenants)")
}

// limitError is a bound of the entry that was passed.
type limitError struct{ name, text string }

func (e *limitError) Error() string { return e.text }

// LimitName is the bound's.
func (e *limitError) LimitName() string { return e.name }

// secretError is what is wrong with the entry's credentials, which are the writer's own.
type secretError struct{ err error }

func (e *secretError) Error() string { return "fetch.secret: " + e.err.Error() }

func (e *secretError) Unwrap() error { return e.err }

// digestError is a module that is not what the entry pins.
type digestError struct{ text string }

func (e *digestError) Error() string { return e.text }

func (f *Fetcher) fetchPinned(ctx context.Context, e *manifest.Entry) (*Module, error) {
	if e.Kind() != "file" && !e.Pinned() {
		return nil, errors.New("a module that is not a local file has to be pinned (digest)")
	}
	bounded, cancel := context.WithTimeoutCause(ctx, time.Duration(e.Fetch.Timeout),
		&limitError{"fetch.timeout", fmt.Sprintf("fetching took longer than %s (fetch.timeout)", time.Duration(e.Fetch.Timeout))})
	defer cancel()
	m, err := f.fetch(bounded, e)
	if err != nil {
		if cause := context.Cause(bounded); cause != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return nil, err
	}
	if e.Digest != "" && e.Digest != m.Digest {
		return nil, &digestError{fmt.Sprintf("the module %s has digest %s: the entry pins %s", e.Source, m.Digest, e.Digest)}
	}
	if e.Bundle != nil && m.Bundle == nil {
		if err := f.open(e, m); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (f *Fetcher) fetch(ctx context.Context, e *manifest.Entry) (*Module, error) {
	if e.Follows() {
		return f.followed(ctx, e)
	}
	switch e.Kind() {
	case "file":
		return f.file(e)
	case "https":
		return f.https(ctx, e)
	case "oci":
		return f.oci(ctx, e)
	}
	return nil, fmt.Errorf("nothing is known about sources such as %q", e.Source)
}

// Path is the file of an entry's module; "" where it is no local file.
func (f *Fetcher) Path(e *manifest.Entry) string {
	p, ok := strings.CutPrefix(e.Source, "file:")
	if !ok {
		return ""
	}
	return f.relative(p)
}

func (f *Fetcher) relative(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(f.cfg.Dir, p)
}

func (f *Fetcher) file(e *manifest.Entry) (*Module, error) {
	path := f.Path(e)
	wasm, err := readFile(path, int64(e.Fetch.MaxSize))
	if err != nil {
		return nil, fmt.Errorf("read the module: %w", err)
	}
	m := &Module{Wasm: wasm, Digest: Digest(wasm)}
	return m, f.verifyFile(e, m, func() ([]byte, error) { return readFile(path+".sig", signatureLimit) })
}

// signatureLimit bounds the signature of a file.
const signatureLimit = 16 << 10

func readFile(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	return readAll(file, limit, path)
}

func readAll(r io.Reader, limit int64, what string) ([]byte, error) {
	if limit <= 0 {
		limit = 32 << 20
	}
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, &limitError{"fetch.maxSize", fmt.Sprintf("%s has more than %d bytes (fetch.maxSize)", what, limit)}
	}
	return b, nil
}

// verifyFile checks the signature that lies beside a file.
func (f *Fetcher) verifyFile(e *manifest.Entry, m *Module, read func() ([]byte, error)) error {
	if len(e.Signatures) == 0 {
		return nil
	}
	signature, err := read()
	if err != nil {
		return &sign.Error{Of: e.Source, Reason: fmt.Sprintf("there is none beside it (%v); `cosign sign-blob --key KEY --output-signature MODULE.sig MODULE` makes one", err)}
	}
	for _, want := range e.Signatures {
		keys, err := f.keys(want)
		if err != nil {
			return err
		}
		if err := sign.VerifyFile(e.Source, m.Wasm, signature, keys); err != nil {
			return err
		}
	}
	m.Verified = true
	return nil
}

// keys reads the public keys of an entry.
func (f *Fetcher) keys(s manifest.Signature) ([]crypto.PublicKey, error) {
	var out []crypto.PublicKey
	for _, k := range s.Keys {
		text := []byte(k)
		if !strings.HasPrefix(strings.TrimSpace(k), "-----BEGIN") {
			var err error
			if text, err = readFile(f.relative(k), signatureLimit); err != nil {
				return nil, fmt.Errorf("signatures: read the key: %w", err)
			}
		}
		keys, err := sign.ParsePublicKeys(text)
		if err != nil {
			return nil, fmt.Errorf("signatures: key %q: %w", firstLine(k), err)
		}
		out = append(out, keys...)
	}
	return out, nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
