// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// tries is how often a download is begun or resumed.
const tries = 4

func (f *Fetcher) https(ctx context.Context, e *manifest.Entry) (*Module, error) {
	m := &Module{Digest: e.Digest}
	know := f.cache.about(e.Source)
	client, done, err := f.client(e)
	if err != nil {
		return nil, err
	}
	defer done()
	auth, err := f.credentials(ctx, e)
	if err != nil {
		return nil, err
	}
	m.Wasm, m.Cached = f.cache.blob(e.Digest, int64(e.Fetch.MaxSize))
	if !m.Cached {
		if m.Wasm, err = download(ctx, client, e.Source, int64(e.Fetch.MaxSize), auth); err != nil {
			return nil, fmt.Errorf("fetch %s: %w", e.Source, err)
		}
		if m.Digest = Digest(m.Wasm); m.Digest != e.Digest {
			return m, nil // Fetch says so; what is not wanted is not kept
		}
		if err := f.cache.put(m.Wasm); err != nil {
			f.cfg.Logger.WarnContext(ctx, "a fetched module is not kept, so that a restart needs the network", "plugin", e.Name, "error", err)
		}
	}
	return m, f.verifyFile(e, m, func() ([]byte, error) {
		b, err := download(ctx, client, e.Source+".sig", signatureLimit, auth)
		if err != nil && len(know.File) > 0 {
			return know.File, nil
		}
		if err == nil {
			know.File = b
			err = f.cache.remember(know)
		}
		return b, err
	})
}

// client is for one fetch; done closes its connections.
func (f *Fetcher) client(e *manifest.Entry) (*http.Client, func(), error) {
	t, err := f.transport(e)
	if err != nil {
		return nil, nil, err
	}
	return &http.Client{Transport: t, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		// Another host is fine: what comes from there has to have the pinned digest.
		if next.URL.Scheme != "https" {
			return fmt.Errorf("it redirects to %s://, away from TLS", next.URL.Scheme)
		}
		if len(via) > 5 {
			return errors.New("it redirects more than 5 times")
		}
		return nil
	}}, t.CloseIdleConnections, nil
}

// policy is where the entry's source may be: tenants' on the internet and where the
// operator says, others' everywhere but where machines tell about themselves.
func (f *Fetcher) policy(e *manifest.Entry) *dial.Policy {
	if e.Namespace != "" {
		return f.cfg.Tenants
	}
	return f.cfg.Operators
}

func (f *Fetcher) transport(e *manifest.Entry) (*http.Transport, error) {
	t := f.policy(e).Guard(http.DefaultTransport.(*http.Transport).Clone())
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	t.ResponseHeaderTimeout = 30 * time.Second
	if e.Fetch.CA == "" && e.Fetch.CAFile == "" {
		return t, nil
	}
	text, err := []byte(e.Fetch.CA), error(nil)
	if e.Fetch.CAFile != "" {
		if text, err = os.ReadFile(f.relative(e.Fetch.CAFile)); err != nil {
			return nil, fmt.Errorf("fetch.caFile: %w", err)
		}
	}
	t.TLSClientConfig.RootCAs = x509.NewCertPool()
	if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(text) {
		return nil, errors.New("fetch.caFile holds no certificate in PEM")
	}
	return t, nil
}

// download reads a URL, and goes on where a connection broke off, as long as the
// server's content is still the same.
func download(ctx context.Context, client *http.Client, url string, limit int64, c credentials) ([]byte, error) {
	var got []byte
	var tag string
	var last error
	for range tries {
		b, etag, whole, err := part(ctx, client, url, limit, c, len(got), tag)
		if whole {
			got = nil
		}
		got, tag = append(got, b...), etag
		if int64(len(got)) > limit {
			return nil, &limitError{"fetch.maxSize", fmt.Sprintf("it has more than %d bytes (fetch.maxSize)", limit)}
		}
		if err == nil {
			return got, nil
		}
		var final *statusError
		var limited *limitError
		if ctx.Err() != nil || dial.Refused(err) || errors.As(err, &limited) || errors.As(err, &final) && !final.temporary() {
			return nil, err
		}
		if last = err; tag == "" {
			got = nil // nobody could tell whether the rest belongs to it
		}
	}
	return nil, fmt.Errorf("it broke off %d times; the last time: %w", tries, last)
}

type statusError struct {
	code int
	text string
}

func (s *statusError) Error() string { return "the server answers " + s.text }

func (s *statusError) temporary() bool {
	return s.code == http.StatusTooManyRequests || s.code >= 500
}

// part reads what is left from an offset on; whole says that the server began anew.
func part(ctx context.Context, client *http.Client, url string, limit int64, c credentials, from int,
	tag string,
) (b []byte, etag string, whole bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, tag, false, err
	}
	if c.username != "" {
		r.SetBasicAuth(c.username, c.password)
	}
	r.Header.Set("Accept-Encoding", "identity") // the digest is of the module as it is
	if from > 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
		r.Header.Set("If-Range", tag)
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, tag, false, err
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode == http.StatusOK:
		whole = true
	case resp.StatusCode == http.StatusPartialContent && from > 0:
		if !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", from)) {
			return nil, "", true, fmt.Errorf("the server resumed at %q: %d was asked for", resp.Header.Get("Content-Range"), from)
		}
	default:
		return nil, tag, false, &statusError{resp.StatusCode, resp.Status}
	}
	if resp.ContentLength > limit {
		return nil, "", whole, &limitError{"fetch.maxSize", fmt.Sprintf("the server answers %d bytes: at most %d are allowed (fetch.maxSize)",
			resp.ContentLength, limit)}
	}
	b, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err == nil && resp.ContentLength >= 0 && int64(len(b)) < resp.ContentLength {
		err = io.ErrUnexpectedEOF
	}
	etag = resp.Header.Get("ETag")
	if strings.HasPrefix(etag, "W/") {
		etag = "" // says nothing about bytes
	}
	return b, etag, whole, err
}

// credentials of a server; empty = none.
type credentials struct{ username, password string }

// credentials are those of a Secret of type basic-auth; https knows no others.
func (f *Fetcher) credentials(ctx context.Context, e *manifest.Entry) (credentials, error) {
	data, err := f.secret(ctx, e)
	if err == nil && data != nil && data["username"] == nil {
		err = &secretError{fmt.Errorf("%s holds no username and password", e.Fetch.Secret)}
	}
	return credentials{string(data["username"]), string(data["password"])}, err
}

// secret reads the Secret that an entry names; nil where it names none.
func (f *Fetcher) secret(ctx context.Context, e *manifest.Entry) (map[string][]byte, error) {
	if e.Fetch.Secret == "" {
		return nil, nil
	}
	if f.cfg.Secrets == nil {
		return nil, &secretError{fmt.Errorf("there is no API here to read %s from", e.Fetch.Secret)}
	}
	namespace, name, _ := strings.Cut(e.Fetch.Secret, "/")
	data, err := f.cfg.Secrets(ctx, namespace, name)
	if err != nil {
		return nil, &secretError{err}
	}
	return data, nil
}

// dockerAuths are the credentials of a config.json, by registry.
func dockerAuths(text []byte) (map[string]credentials, error) {
	var file struct {
		Auths map[string]struct {
			Auth     string `json:"auth"`
			Username string `json:"username"`
			Password string `json:"password"`
		} `json:"auths"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("it is no docker config: %w", err)
	}
	out := map[string]credentials{}
	for host, a := range file.Auths {
		c := credentials{a.Username, a.Password}
		if a.Auth != "" {
			plain, err := base64.StdEncoding.DecodeString(a.Auth)
			user, password, ok := strings.Cut(string(plain), ":")
			if err != nil || !ok {
				return nil, fmt.Errorf("the credentials of %s cannot be read", host)
			}
			c = credentials{user, strings.TrimRight(password, "\x00")}
		}
		host = strings.TrimPrefix(strings.TrimPrefix(host, "https://"), "http://")
		host, _, _ = strings.Cut(host, "/")
		out[host] = c
	}
	return out, nil
}
