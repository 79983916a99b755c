// SPDX-License-Identifier: Apache-2.0

package origin_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"

	"github.com/wasmplane/wasmplane/core/chart/origin"
	"github.com/wasmplane/wasmplane/core/chart/render"
	"github.com/wasmplane/wasmplane/core/dial"
)

// finder finds what it is.
type finder struct{ entry render.Entry }

func (f finder) Find(_ context.Context, _ bool, index []byte, _, _ string) (render.Entry, error) {
	if string(index) != "the index" {
		return f.entry, io.ErrUnexpectedEOF
	}
	return f.entry, nil
}

func fetcher(f origin.Finder, log io.Writer, allow ...netip.Prefix) *origin.Fetcher {
	return &origin.Fetcher{
		Operators: dial.Operator(nil), Tenants: dial.Public(allow, nil), Finder: f, Logger: slog.New(slog.NewTextHandler(log, nil)),
	}
}

func serve(t *testing.T, h http.Handler) (s *httptest.Server, host, ca string) {
	t.Helper()
	s = httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return s, u.Host, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func TestARepositoryAndAnArchive(t *testing.T) {
	chart := []byte("a chart")
	var elsewhere atomic.Value
	other, _, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _, credentials := r.BasicAuth()
		elsewhere.Store(credentials)
		_, _ = w.Write(chart)
	}))
	s, _, ca := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "me" || password != "secret" {
			http.Error(w, "who are you", http.StatusUnauthorized)
			return
		}
		switch r.URL.Path {
		case "/charts/index.yaml":
			_, _ = w.Write([]byte("the index"))
		case "/charts/shop-1.0.0.tgz":
			_, _ = w.Write(chart)
		case "/charts/large.tgz":
			_, _ = w.Write(bytes.Repeat([]byte("x"), origin.MaxArchive+1))
		case "/charts/plain.tgz":
			http.Redirect(w, r, "http://127.0.0.1:1/x", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	}))
	for _, c := range []struct {
		name  string
		entry render.Entry
		s     origin.Source
		want  string
	}{
		{"a repository", render.Entry{URL: "shop-1.0.0.tgz", Digest: origin.Digest(chart)}, origin.Source{Chart: "shop", Repo: s.URL + "/charts"}, ""},
		{"one whose chart is elsewhere", render.Entry{URL: other.URL + "/x"}, origin.Source{Chart: "shop", Repo: s.URL + "/charts/"}, ""},
		{"another digest", render.Entry{URL: "shop-1.0.0.tgz", Digest: "sha256:00"}, origin.Source{Chart: "shop", Repo: s.URL + "/charts"}, "says that the chart has the digest sha256:00"},
		{"away from TLS", render.Entry{URL: "http://x/y"}, origin.Source{Chart: "shop", Repo: s.URL + "/charts"}, "no address by https"},
		{"no index", render.Entry{}, origin.Source{Chart: "shop", Repo: s.URL}, "404"},
		{"an archive", render.Entry{}, origin.Source{Chart: s.URL + "/charts/shop-1.0.0.tgz"}, ""},
		{"too large", render.Entry{}, origin.Source{Chart: s.URL + "/charts/large.tgz"}, "more than 4194304 bytes"},
		{"a redirect away from TLS", render.Entry{}, origin.Source{Chart: s.URL + "/charts/plain.tgz"}, "away from TLS"},
		{"no source", render.Entry{}, origin.Source{Chart: "shop"}, "name its repository in repo"},
		{"no TLS", render.Entry{}, origin.Source{Chart: "http://x/y.tgz"}, "no address by https"},
		{"a password in the address", render.Entry{}, origin.Source{Chart: "https://a:b@x/y.tgz"}, "authSecret"},
		{"no tag", render.Entry{}, origin.Source{Chart: "oci://x.io/y"}, "version: is needed"},
		{"a range of tags", render.Entry{}, origin.Source{Chart: "oci://x.io/y", Version: "~1"}, "no tag of a registry"},
	} {
		c.s.CA, c.s.Username, c.s.Password = ca, "me", "secret"
		got, err := fetcher(finder{c.entry}, io.Discard).Fetch(t.Context(), c.s)
		switch {
		case c.want == "" && (err != nil || string(got) != string(chart)):
			// The other server has a certificate of its own: it is not trusted, and that is all right here.
			if c.name != "one whose chart is elsewhere" || !strings.Contains(err.Error(), "certificate") {
				t.Errorf("%s: %q, %v", c.name, got, err)
			}
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if got, ok := elsewhere.Load().(bool); ok && got {
		t.Error("credentials went to another host")
	}
}

func TestARegistry(t *testing.T) {
	s, host, ca := serve(t, registry.New())
	push := func(tag string, media string, body []byte) {
		image, err := mutate.AppendLayers(empty.Image, static.NewLayer(body, origin.ChartMedia))
		if media != "" {
			image, err = mutate.AppendLayers(empty.Image, static.NewLayer(body, "application/x"))
		}
		if err != nil {
			t.Fatal(err)
		}
		ref, err := name.ParseReference(host + "/charts/shop:" + tag)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(ref, image, remote.WithTransport(s.Client().Transport)); err != nil {
			t.Fatal(err)
		}
	}
	push("1.0.0_a", "", []byte("a chart"))
	push("2.0.0", "other", []byte("something else"))
	push("3.0.0", "", bytes.Repeat([]byte("x"), origin.MaxArchive+1))
	for version, want := range map[string]string{
		"1.0.0+a": "", "2.0.0": "no chart: no layer", "3.0.0": "more than 4194304 bytes", "4.0.0": "MANIFEST_UNKNOWN",
	} {
		got, err := fetcher(nil, io.Discard).Fetch(t.Context(), origin.Source{Chart: "oci://" + host + "/charts/shop", Version: version, CA: ca})
		if want == "" && (err != nil || string(got) != "a chart") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %q, %v, want %q", version, got, err, want)
		}
	}
}

// A tenant's source leads to nothing near, and what is near is not told.
func TestATenantsSourceReachesNothingNear(t *testing.T) {
	var asked atomic.Int64
	s, host, ca := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		http.Error(w, "the database's password", http.StatusTeapot)
	}))
	for _, chart := range []string{
		s.URL + "/x.tgz", "oci://" + host + "/a/b", "https://localhost:" + strings.Split(host, ":")[1] + "/x.tgz",
		"https://169.254.169.254/latest",
	} {
		var log bytes.Buffer
		source := origin.Source{Chart: chart, Tenant: true, CA: ca}
		if strings.HasPrefix(chart, "oci") {
			source.Version = "1"
		}
		_, err := fetcher(nil, &log).Fetch(t.Context(), source)
		if err == nil || !strings.Contains(err.Error(), "egress.tenants") || strings.Contains(err.Error(), "127.0.0.1") || asked.Load() > 0 {
			t.Errorf("%s: %v, asked %d times", chart, err, asked.Load())
		}
		if !strings.Contains(log.String(), "private address") && !strings.Contains(log.String(), "link-local") {
			t.Errorf("%s: the operator is not told: %s", chart, log.String())
		}
	}
	_, err := fetcher(nil, io.Discard, netip.MustParsePrefix("127.0.0.0/8")).Fetch(t.Context(),
		origin.Source{Chart: s.URL + "/x.tgz", Tenant: true, CA: ca})
	if err == nil || asked.Load() != 1 || strings.Contains(err.Error(), "418") {
		t.Errorf("where the operator allows it: %v, asked %d times", err, asked.Load())
	}
}
