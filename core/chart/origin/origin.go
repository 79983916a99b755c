// SPDX-License-Identifier: Apache-2.0

// Package origin fetches the archives of charts: from a registry (oci://), from a repository with an
// index, or by an address. It speaks TLS alone, reads no more than its limits, and connects where the
// policy allows that stands for whoever wrote the source (core/dial): a tenant's leads to the
// internet, an operator's everywhere but where machines tell about themselves.
//
// What a tenant is told of a failure names his source and the limit, not what was found in the network.
package origin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/wasmplane/wasmplane/core/chart/render"
	"github.com/wasmplane/wasmplane/core/dial"
)

// Limits of what is fetched.
const (
	MaxArchive = 4 << 20  // bytes of a chart; one that does not fit into a Secret cannot be installed anyway
	MaxIndex   = 24 << 20 // bytes of a repository's index.yaml
	patience   = time.Minute
)

// ChartMedia is the type of the layer that holds a chart in a registry.
const ChartMedia types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"

// Source is where a chart is.
type Source struct {
	Chart   string // oci://HOST/PATH, https://HOST/PATH.tgz, or a name in Repo
	Repo    string // https://HOST/PATH
	Version string
	// Tenant: it was written by somebody who has no rights over the machine.
	Tenant bool
	// Username, Password and CA (PEM) for the host of Repo, or else of Chart.
	Username, Password, CA string
}

// Finder looks into an index, which may be one of a tenant's choice.
type Finder interface {
	Find(ctx context.Context, tenant bool, index []byte, name, version string) (render.Entry, error)
}

// Fetcher fetches. Its methods are safe for concurrent use.
type Fetcher struct {
	Operators, Tenants dial.Policy
	Finder             Finder
	Logger             *slog.Logger
}

// Digest of an archive.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// toldError is one that a tenant may know.
type toldError struct{ text string }

func (e *toldError) Error() string { return e.text }

func told(format string, args ...any) error { return &toldError{fmt.Sprintf(format, args...)} }

// Check says whether a source is one.
func (s Source) Check() error {
	_, _, err := s.place()
	return err
}

// place is the address that a source begins at, and what is there.
func (s Source) place() (at *url.URL, kind string, err error) {
	switch text := s.Chart; {
	case strings.HasPrefix(text, "oci://"):
		if s.Repo != "" {
			return nil, "", told("with chart: oci://..., repo must be empty")
		}
		_, err = s.reference()
		return nil, "oci", err
	case strings.Contains(text, "://"):
		if s.Repo != "" || s.Version != "" {
			return nil, "", told("with the address of an archive in chart, repo and version must be empty")
		}
		at, err = address(text)
		return at, "archive", err
	case s.Repo == "":
		return nil, "", told("chart: %q is no oci:// or https:// address: name its repository in repo", text)
	default:
		at, err = address(s.Repo)
		return at, "repository", err
	}
}

func address(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, told("%q is no address by https://, without user and password (authSecret names those)", text)
	}
	return u, nil
}

// Fetch fetches a chart.
func (f *Fetcher) Fetch(ctx context.Context, s Source) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b, err := f.fetch(ctx, s)
	var mayKnow *toldError
	if err == nil || !s.Tenant || errors.As(err, &mayKnow) {
		return b, err
	}
	f.Logger.InfoContext(ctx, "could not fetch a tenant's chart", "chart", s.Chart, "repo", s.Repo, "error", err)
	return nil, errors.New("the chart's source is not reachable: those of tenants are on the internet, " +
		"or where the operator allows it (egress.tenants)")
}

func (f *Fetcher) fetch(ctx context.Context, s Source) ([]byte, error) {
	at, kind, err := s.place()
	if err != nil {
		return nil, err
	}
	t, err := f.transport(s)
	if err != nil {
		return nil, err
	}
	defer t.CloseIdleConnections()
	switch kind {
	case "oci":
		return s.pull(ctx, t)
	case "archive":
		return s.get(ctx, t, at, at.Host, MaxArchive)
	}
	base := at.JoinPath("/")
	text, err := s.get(ctx, t, base.JoinPath("index.yaml"), at.Host, MaxIndex)
	if err != nil {
		return nil, err
	}
	e, err := f.Finder.Find(ctx, s.Tenant, text, s.Chart, s.Version)
	if err != nil {
		return nil, told("%v", err)
	}
	file, err := base.Parse(e.URL)
	if err != nil || file.Scheme != "https" || file.User != nil {
		return nil, told("the repository says that the chart is at %q, which is no address by https://", e.URL)
	}
	b, err := s.get(ctx, t, file, at.Host, MaxArchive)
	if err == nil && e.Digest != "" && Digest(b) != e.Digest {
		return nil, told("the repository says that the chart has the digest %s, and it has %s", e.Digest, Digest(b))
	}
	return b, err
}

func (f *Fetcher) transport(s Source) (*http.Transport, error) {
	policy := f.Operators
	if s.Tenant {
		policy = f.Tenants
	}
	t := policy.Guard(http.DefaultTransport.(*http.Transport).Clone())
	t.TLSClientConfig, t.ResponseHeaderTimeout, t.MaxResponseHeaderBytes = &tls.Config{MinVersion: tls.VersionTLS12}, 30*time.Second, 64<<10
	if s.CA != "" {
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(s.CA)) {
			return nil, told("ca.crt of authSecret holds no certificate in PEM")
		}
	}
	return t, nil
}

// tooLarge is told, as the limit is nobody's secret.
func tooLarge(what string, limit int64) error {
	return told("%s has more than %d bytes, which is the most", what, limit)
}

// get reads one file. Credentials go to home only.
func (s Source) get(ctx context.Context, t http.RoundTripper, u *url.URL, home string, limit int64) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if s.Username != "" && u.Host == home {
		r.SetBasicAuth(s.Username, s.Password)
	}
	r.Header.Set("Accept-Encoding", "identity")
	client := &http.Client{Transport: dial.Bounded(onlyTLS{t}, limit), CheckRedirect: func(_ *http.Request, via []*http.Request) error {
		if len(via) > 5 {
			return errors.New("it redirects more than 5 times")
		}
		return nil
	}}
	resp, err := client.Do(r)
	var large *dial.TooLargeError
	if errors.As(err, &large) {
		return nil, tooLarge(u.String(), limit)
	}
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", u, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetch %s: the server answers %s", u, resp.Status)
	}
	b, err := io.ReadAll(resp.Body)
	if errors.As(err, &large) {
		return nil, tooLarge(u.String(), limit)
	}
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", u, err)
	}
	return b, nil
}

// onlyTLS refuses requests without TLS, to which client libraries fall back for local addresses.
type onlyTLS struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (o onlyTLS) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		return nil, fmt.Errorf("it leads to %s://, away from TLS", r.URL.Scheme)
	}
	return o.RoundTripper.RoundTrip(r)
}

// reference is what an oci:// source names: by tag, which is the version, or by the digest of its manifest.
func (s Source) reference() (name.Reference, error) {
	text := strings.TrimPrefix(s.Chart, "oci://")
	if strings.Contains(text, "@") {
		d, err := name.NewDigest(text)
		if err != nil {
			return nil, told("chart: expected oci://HOST/PATH@sha256:DIGEST: %v", err)
		}
		return d, nil
	}
	repository, err := name.NewRepository(text, name.StrictValidation)
	if err != nil {
		return nil, told("chart: expected oci://HOST/PATH, and the tag in version: %v", err)
	}
	if s.Version == "" {
		return nil, told("version: is needed with an oci:// chart: the tag, 1.2.3")
	}
	tag := strings.ReplaceAll(s.Version, "+", "_") // no tag may have a plus
	ref, err := name.NewTag(repository.Name()+":"+tag, name.StrictValidation)
	if err != nil {
		return nil, told("version: %q is no tag of a registry; ranges are for repositories with an index: %v", s.Version, err)
	}
	return ref, nil
}

// pull reads a chart from a registry.
func (s Source) pull(ctx context.Context, t http.RoundTripper) ([]byte, error) {
	ref, err := s.reference()
	if err != nil {
		return nil, err
	}
	auth := authn.Anonymous
	if s.Username != "" {
		auth = &authn.Basic{Username: s.Username, Password: s.Password}
	}
	options := []remote.Option{
		remote.WithContext(ctx), remote.WithTransport(dial.Bounded(onlyTLS{t}, MaxArchive)), remote.WithAuth(auth),
	}
	found, err := remote.Get(ref, options...)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", s.Chart, err)
	}
	var m v1.Manifest
	if err := json.NewDecoder(bytes.NewReader(found.Manifest)).Decode(&m); err != nil {
		return nil, told("%s is no chart: its manifest cannot be read", s.Chart)
	}
	for _, l := range m.Layers {
		if l.MediaType != ChartMedia {
			continue
		}
		if l.Size > MaxArchive {
			return nil, tooLarge(s.Chart, MaxArchive)
		}
		return s.layer(ref.Context().Digest(l.Digest.String()), options)
	}
	return nil, told("%s is no chart: no layer of it is a %s", s.Chart, ChartMedia)
}

// layer reads a blob, which the library holds against its digest.
func (s Source) layer(d name.Digest, options []remote.Option) ([]byte, error) {
	l, err := remote.Layer(d, options...)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", s.Chart, err)
	}
	r, err := l.Compressed()
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", s.Chart, err)
	}
	defer func() { _ = r.Close() }()
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", s.Chart, err)
	}
	return b, nil
}
