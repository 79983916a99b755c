// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"time"
)

// TooLargeError is an answer that is larger than what anybody reads.
type TooLargeError struct {
	Host  string
	Limit int64 // bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the answer of %s is larger than %d bytes", e.Host, e.Limit)
}

// RedirectError is an answer that leads elsewhere, where only the place that was named may answer.
type RedirectError struct{ Host, Status string }

func (e *RedirectError) Error() string {
	return fmt.Sprintf("%s answered with a redirect (%s), which is not followed: the configuration must name the place itself", e.Host, e.Status)
}

// Bounded makes the answers of rt end with an error behind limit bytes, as they are after
// decompression: libraries read them whole.
func Bounded(rt http.RoundTripper, limit int64) http.RoundTripper { return &bounded{rt, limit} }

type bounded struct {
	rt    http.RoundTripper
	limit int64
}

// RoundTrip implements http.RoundTripper.
func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.rt.RoundTrip(r)
	if err != nil || resp.StatusCode == http.StatusSwitchingProtocols {
		return resp, err
	}
	if resp.ContentLength > b.limit && r.Method != http.MethodHead {
		_ = resp.Body.Close()
		return nil, &TooLargeError{r.URL.Host, b.limit}
	}
	resp.Body = &counted{resp.Body, b.limit, &TooLargeError{r.URL.Host, b.limit}}
	return resp, nil
}

// WrappedRoundTripper implements client-go's interface for what looks beneath.
func (b *bounded) WrappedRoundTripper() http.RoundTripper { return b.rt }

type counted struct {
	io.ReadCloser
	left    int64
	tooMuch error
}

func (c *counted) Read(p []byte) (int, error) {
	// One byte more than is left tells an answer of exactly the limit from a larger one.
	if int64(len(p)) > c.left+1 {
		p = p[:c.left+1]
	}
	n, err := c.ReadCloser.Read(p)
	if c.left -= int64(n); c.left < 0 {
		c.left = 0
		return 0, c.tooMuch
	}
	return n, err
}

// stays refuses redirects.
type stays struct{ rt http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (s *stays) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.rt.RoundTrip(r)
	if err == nil && resp.StatusCode >= 300 && resp.StatusCode < 400 && resp.StatusCode != http.StatusNotModified {
		_ = resp.Body.Close()
		return nil, &RedirectError{r.URL.Host, resp.Status}
	}
	return resp, err
}

// WrappedRoundTripper implements client-go's interface for what looks beneath.
func (s *stays) WrappedRoundTripper() http.RoundTripper { return s.rt }

// Webhook is what wraps the transport of a webhook's client, beside the policy's Context,
// which it connects by: no redirect is followed, which would lead the server and its
// credentials elsewhere, and limit bytes of an answer are read at most.
func Webhook(limit int64) func(http.RoundTripper) http.RoundTripper {
	return func(rt http.RoundTripper) http.RoundTripper { return Bounded(&stays{rt}, limit) }
}

// Client asks by the policy, with trust (nil: the machine's roots), within the time for each
// request, and reads limit bytes of an answer at most. Redirects are followed as far as the policy allows.
func (p Policy) Client(trust *tls.Config, within time.Duration, limit int64) *http.Client {
	t := p.Guard(&http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: trust, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
		MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: 2, IdleConnTimeout: 90 * time.Second,
	})
	return &http.Client{Transport: Bounded(t, limit), Timeout: within}
}

// DirectClient is Client that follows no redirect: the server answers that was named, or nobody. A redirect is its answer.
func (p Policy) DirectClient(trust *tls.Config, within time.Duration, limit int64) *http.Client {
	c := p.Client(trust, within, limit)
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c
}

// Or is the policy, or an operator's where there is none.
func (p *Policy) Or() Policy {
	if p == nil {
		return Operator(nil)
	}
	return *p
}
