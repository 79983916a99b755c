// SPDX-License-Identifier: Apache-2.0

package hostfn

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// FetchRequest is a request over https.
type FetchRequest struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
	// Body as text, or BodyBytes as base64.
	Body      string `json:"body,omitempty"`
	BodyBytes []byte `json:"bodyBytes,omitempty"`
}

// FetchReply is the answer; its body is in Body where it is text, else in BodyBytes.
type FetchReply struct {
	Status    int               `json:"status"`
	Headers   map[string]string `json:"headers"`
	Body      string            `json:"body,omitempty"`
	BodyBytes []byte            `json:"bodyBytes,omitempty"`
}

// Bounds of requests.
const (
	mostRedirects    = 3
	bodyLimit        = 512 << 10
	mostHeaders      = 32
	headerLimit      = 16 << 10
	costOfConnection = 10_000
)

// Fetch sends a request to a host that was granted.
func (c *Caller) Fetch(ctx context.Context, q FetchRequest) (FetchReply, error) {
	if q.Method == "" {
		q.Method = http.MethodGet
	}
	u, err := url.Parse(q.URL)
	if err != nil {
		return FetchReply{}, fmt.Errorf("url: %w", err)
	}
	g, err := c.fetchGrant(u, q.Method)
	if err != nil {
		return FetchReply{}, err
	}
	if err := c.mayNetwork(ctx, "http"); err != nil {
		return FetchReply{}, err
	}
	if host.DryRun(ctx) && q.Method != http.MethodGet && q.Method != http.MethodHead {
		return FetchReply{}, fmt.Errorf("this is a dry run, in which nothing but GET and HEAD is sent, and this is a %s", q.Method)
	}
	body := q.BodyBytes
	if q.Body != "" {
		body = []byte(q.Body)
	}
	if len(q.Headers) > mostHeaders || len(body) > bodyLimit {
		return FetchReply{}, fmt.Errorf("the request has more than %d headers, or more than %d bytes of body", mostHeaders, bodyLimit)
	}
	if err := host.Charge(ctx, costOfConnection); err != nil {
		return FetchReply{}, err
	}
	transport, err := c.f.egress.transport(g.Private, g.CAFile)
	if err != nil {
		return FetchReply{}, err
	}
	r, err := http.NewRequestWithContext(attempts.With(ctx, c.e.Subject()), q.Method, u.String(), bytes.NewReader(body))
	if err != nil {
		return FetchReply{}, fmt.Errorf("make the request: %w", err)
	}
	for k, v := range q.Headers {
		if strings.EqualFold(k, "Host") || strings.EqualFold(k, "Proxy-Authorization") || strings.EqualFold(k, "Transfer-Encoding") {
			return FetchReply{}, fmt.Errorf("headers: %s cannot be set", k)
		}
		r.Header.Set(k, v)
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		if len(via) > mostRedirects {
			return fmt.Errorf("more than %d redirects", mostRedirects)
		}
		other, err := c.fetchGrant(next.URL, next.Method)
		if err == nil && (other.Private != g.Private || other.CAFile != g.CAFile) {
			err = &host.RefusedError{Reason: "a redirect leads to a host of another grant"}
		}
		return err
	}}
	resp, err := client.Do(r)
	if err != nil {
		return FetchReply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	return fetched(ctx, resp)
}

func fetched(ctx context.Context, resp *http.Response) (FetchReply, error) {
	b, err := io.ReadAll(io.LimitReader(resp.Body, bodyLimit+1))
	if err != nil {
		return FetchReply{}, fmt.Errorf("read the answer: %w", err)
	}
	if len(b) > bodyLimit {
		return FetchReply{}, fmt.Errorf("the answer is more than %d bytes", bodyLimit)
	}
	if err := host.Charge(ctx, int64(len(b))); err != nil {
		return FetchReply{}, err
	}
	reply := FetchReply{Status: resp.StatusCode, Headers: map[string]string{}}
	for k := range resp.Header {
		reply.Headers[strings.ToLower(k)] = resp.Header.Get(k)
	}
	if utf8.Valid(b) {
		reply.Body = string(b)
	} else {
		reply.BodyBytes = b
	}
	return reply, nil
}

// fetchGrant finds the grant that covers a request.
func (c *Caller) fetchGrant(u *url.URL, method string) (*manifest.HTTPGrant, error) {
	if u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("url: expected https:// and a host, found %q", clip(u.Redacted(), 200))
	}
	if u.User != nil {
		return nil, errors.New("url: credentials belong into a header")
	}
	for i := range c.e.Grants.HTTP {
		g := &c.e.Grants.HTTP[i]
		methods := g.Methods
		if len(methods) == 0 {
			methods = []string{http.MethodGet, http.MethodHead}
		}
		path := len(g.Paths) == 0 || slices.ContainsFunc(g.Paths, func(p string) bool { return belowPath(u, p) })
		if slices.ContainsFunc(g.Hosts, func(h string) bool { return sameHost(h, u) }) && slices.Contains(methods, method) && path {
			return g, nil
		}
	}
	return nil, c.refused(fmt.Sprintf("send %s to %s%s", method, u.Host, clip(u.Path, 100)),
		fmt.Sprintf("http: [{hosts: [%s], methods: [%s]}]", u.Host, method))
}

func sameHost(granted string, u *url.URL) bool {
	want, err := url.Parse("https://" + granted)
	port := func(u *url.URL) string {
		if u.Port() == "" {
			return "443"
		}
		return u.Port()
	}
	return err == nil && strings.EqualFold(want.Hostname(), u.Hostname()) && port(want) == port(u)
}

// belowPath compares whole segments of the path as the server gets it, and lets
// nothing climb out with dots.
func belowPath(u *url.URL, granted string) bool {
	path := u.EscapedPath()
	lower := strings.ToLower(path)
	if strings.Contains(path, "/..") || strings.Contains(lower, "%2e") || strings.Contains(lower, "%2f") || strings.Contains(lower, "%5c") {
		return false
	}
	granted = strings.TrimSuffix(granted, "/")
	return path == granted || strings.HasPrefix(path, granted+"/")
}

// egress keeps one transport for each kind of grant.
type egress struct {
	attempts *attempts.Ledger

	mu   sync.Mutex
	made map[egressKey]*http.Transport
}

type egressKey struct {
	private bool
	ca      string
	caTime  time.Time
}

func (e *egress) transport(private bool, caFile string) (*http.Transport, error) {
	key := egressKey{private: private, ca: caFile}
	if caFile != "" {
		info, err := os.Stat(caFile)
		if err != nil {
			return nil, fmt.Errorf("grants.http: caFile: %w", err)
		}
		key.caTime = info.ModTime()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.made[key]; t != nil {
		return t, nil
	}
	roots, err := authorities(caFile)
	if err != nil {
		return nil, err
	}
	for old, t := range e.made { // the file of the authorities has changed
		if old.private == private && old.ca == caFile {
			t.CloseIdleConnections()
			delete(e.made, old)
		}
	}
	if e.made == nil {
		e.made = map[egressKey]*http.Transport{}
	}
	e.made[key] = GuardedTransport(private, roots, e.attempts)
	return e.made[key], nil
}

func (e *egress) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.made {
		t.CloseIdleConnections()
	}
}

func authorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the authorities: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read the authorities: %s holds no certificate in PEM", file)
	}
	return pool, nil
}

// GuardedTransport connects to public addresses only, unless private ones are
// allowed. The address is checked when it is connected to, whatever a name was
// resolved to before. No proxy of the environment is used: it would connect in our place.
// What is refused is written down in the ledger.
func GuardedTransport(private bool, roots *x509.CertPool, l *attempts.Ledger) *http.Transport {
	policy := dial.Public(nil, nil)
	if private {
		policy = dial.Operator(nil)
	}
	policy.Report = func(ctx context.Context, refused *dial.RefusedError) {
		l.Refused(ctx, attempts.Attempt{
			Kind: attempts.Dial, Reason: "grant", Detail: "policy of the plugin's grant: " + refused.Error(),
			Event: "it was about to connect to an address that its grants do not allow",
		})
	}
	t := policy.Guard(&http.Transport{
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 4, MaxIdleConns: 32, IdleConnTimeout: time.Minute,
		TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: 10 * time.Second, MaxResponseHeaderBytes: headerLimit,
	})
	connect := policy.Dialer(5 * time.Second)
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := connect.DialContext(ctx, network, address)
		var refused *dial.RefusedError
		if errors.As(err, &refused) {
			return nil, &host.RefusedError{Reason: refused.Error() + " (private: true in the grant allows private ones, and no grant those of metadata services)"}
		}
		return c, err
	}
	return t
}

type lookupRequest struct {
	Host string `json:"host"`
}

type lookupReply struct {
	IPs []string `json:"ips"`
}

func (c *Caller) lookup(ctx context.Context, q lookupRequest) (lookupReply, error) {
	ips, err := c.LookupHost(ctx, q.Host)
	return lookupReply{ips}, err
}

// LookupHost looks up the addresses of a name, in order.
func (c *Caller) LookupHost(ctx context.Context, name string) ([]string, error) {
	if !slices.ContainsFunc(c.e.Grants.DNS, func(p string) bool { return hostMatches(p, name) }) {
		return nil, c.refused("look up the addresses of "+clip(name, 253), "dns: ["+clip(name, 253)+"]")
	}
	if err := c.mayNetwork(ctx, "dns"); err != nil {
		return nil, err
	}
	if err := host.Charge(ctx, costOfConnection); err != nil {
		return nil, err
	}
	ips, err := net.DefaultResolver.LookupHost(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", clip(name, 253), err)
	}
	slices.Sort(ips)
	return ips, nil
}

// hostMatches reads "example.com", "*.example.com" (every name below it) and "*".
func hostMatches(pattern, name string) bool {
	if pattern == "*" || strings.EqualFold(pattern, name) {
		return true
	}
	below, ok := strings.CutPrefix(strings.ToLower(pattern), "*")
	return ok && len(name) > len(below) && strings.HasSuffix(strings.ToLower(name), below)
}
