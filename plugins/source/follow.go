// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/rego/bundle"
)

// open reads and verifies the bundle that a source holds.
func (f *Fetcher) open(e *manifest.Entry, m *Module) error {
	keys := map[string]bundle.Key{}
	for i, k := range e.Bundle.Keys {
		text := k.Key
		if !strings.HasPrefix(strings.TrimSpace(text), "-----BEGIN") {
			b, err := readFile(f.relative(text), signatureLimit)
			if err != nil {
				return fmt.Errorf("bundle.keys[%d].key: read the key: %w", i, err)
			}
			text = string(b)
		}
		keys[k.ID] = bundle.Key{Algorithm: k.Algorithm, Text: text}
	}
	var err error
	m.Bundle, err = e.OpenBundle(m.Wasm, keys)
	m.Verified = err == nil && len(keys) > 0
	return err
}

// followed fetches what a source holds now, whatever that is, if it is signed. Where the source
// cannot be reached, what it held last is taken, so that a restart does not need it.
func (f *Fetcher) followed(ctx context.Context, e *manifest.Entry) (*Module, error) {
	know := f.cache.about(e.Source)
	m, err := f.newest(ctx, e)
	if err != nil {
		kept, ok := f.cache.blob(know.Bundle, int64(e.Fetch.MaxSize))
		if !ok {
			return nil, err
		}
		f.cfg.Logger.WarnContext(ctx, "a bundle could not be fetched; the one that was fetched before is used", "plugin", e.Name,
			"digest", know.Bundle, "error", err)
		m = &Module{Wasm: kept, Digest: know.Bundle, Cached: true}
	}
	if err := f.open(e, m); err != nil {
		return nil, err
	}
	if m.Cached {
		return m, nil
	}
	know.Bundle = m.Digest
	if err := errors.Join(f.cache.put(m.Wasm), f.cache.remember(know)); err != nil {
		f.cfg.Logger.WarnContext(ctx, "a fetched bundle is not kept, so that a restart needs the network", "plugin", e.Name, "error", err)
	}
	return m, nil
}

// newest fetches what a source holds now.
func (f *Fetcher) newest(ctx context.Context, e *manifest.Entry) (*Module, error) {
	if e.Kind() == "https" {
		m, _, err := f.get(ctx, e, "")
		return m, err
	}
	ref, err := parse(e.Source, e.Fetch.PlainHTTP)
	if err != nil {
		return nil, err
	}
	reg := &registry{fetcher: f, entry: e, ref: ref}
	defer reg.close()
	m, err := reg.module(ctx)
	if err != nil {
		return nil, err
	}
	m.Tag, m.Cached = m.Manifest, false
	return m, nil
}

// get asks for a source by https; unchanged says that it is still what the server called so.
func (f *Fetcher) get(ctx context.Context, e *manifest.Entry, tag string) (m *Module, unchanged bool, err error) {
	client, done, err := f.client(e)
	if err != nil {
		return nil, false, err
	}
	defer done()
	auth, err := f.credentials(ctx, e)
	if err != nil {
		return nil, false, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, e.Source, nil)
	if err != nil {
		return nil, false, err
	}
	if auth.username != "" {
		r.SetBasicAuth(auth.username, auth.password)
	}
	r.Header.Set("Accept-Encoding", "identity")
	if tag != "" {
		r.Header.Set("If-None-Match", tag)
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, false, fmt.Errorf("fetch %s: %w", e.Source, err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case tag != "" && resp.StatusCode == http.StatusNotModified:
		return nil, true, nil
	case resp.StatusCode != http.StatusOK:
		return nil, false, fmt.Errorf("fetch %s: %w", e.Source, &statusError{resp.StatusCode, resp.Status})
	}
	b, err := readAll(resp.Body, int64(e.Fetch.MaxSize), e.Source)
	if err != nil {
		return nil, false, fmt.Errorf("fetch %s: %w", e.Source, err)
	}
	return &Module{Wasm: b, Digest: Digest(b), Tag: resp.Header.Get("ETag")}, false, nil
}

// Changed asks whether a source that is followed holds something else than was fetched: a bundle of
// this digest, which the server called by this tag.
func (f *Fetcher) Changed(ctx context.Context, e *manifest.Entry, digest, tag string) (bool, error) {
	if e.Kind() == "https" {
		m, unchanged, err := f.get(ctx, e, tag)
		return err == nil && !unchanged && m.Digest != digest, err
	}
	ref, err := parse(e.Source, e.Fetch.PlainHTTP)
	if err != nil {
		return false, err
	}
	reg := &registry{fetcher: f, entry: e, ref: ref}
	defer reg.close()
	options, err := reg.open(ctx)
	if err != nil {
		return false, err
	}
	d, err := remote.Head(ref.repository.Tag(ref.tag), options...)
	if err != nil {
		return false, fmt.Errorf("look where the tag of %s points: %w", e.Source, err)
	}
	return d.Digest.String() != tag, nil
}
