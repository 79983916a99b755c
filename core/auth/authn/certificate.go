// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"crypto/x509"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	requestx509 "k8s.io/apiserver/pkg/authentication/request/x509"
)

// certificates identifies by client certificate: user = common name, groups =
// organizations. Verifying a chain costs about 100 us, and most requests come
// over connections whose certificate was just verified, so the outcome is kept.
//
// The key is the parsed certificate's address: the cache keeps it alive, so the
// address cannot come to mean another certificate.
type certificates struct {
	inner authenticator.Request
	now   func() time.Time
	seen  *cache.LRUExpireCache
	// refuse is asked on each request, about certificates that are good otherwise.
	refuse func(ctx context.Context, c *x509.Certificate, registers bool) error
}

const (
	// A removed authority is forgotten after this time.
	certificateTTL  = time.Minute
	certificateSeen = 4096
)

func newCertificates(cfg Config) *certificates {
	refuse := cfg.RefuseCertificate
	if refuse == nil {
		refuse = func(context.Context, *x509.Certificate, bool) error { return nil }
	}
	now := cfg.Now
	return &certificates{
		inner:  requestx509.NewDynamic(verifyOptions(cfg.ClientCAs, now), requestx509.CommonNameUserConversion),
		now:    now,
		refuse: refuse,
		seen:   cache.NewLRUExpireCacheWithClock(certificateSeen, clock(now)),
	}
}

func verifyOptions(cas func() *x509.CertPool, now func() time.Time) requestx509.VerifyOptionFunc {
	return func() (x509.VerifyOptions, bool) {
		pool := cas()
		o := requestx509.DefaultVerifyOptions()
		o.Roots, o.CurrentTime = pool, now()
		// Without roots of our own, Verify would take the machine's.
		return o, pool != nil
	}
}

func (c *certificates) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	leaf := r.TLS.PeerCertificates[0]
	if known, ok := c.seen.Get(leaf); ok && c.now().Before(leaf.NotAfter) {
		return c.unlessRefused(r, leaf, known.(*authenticator.Response))
	}
	resp, ok, err := c.inner.AuthenticateRequest(r)
	if err != nil || !ok {
		return resp, ok, err
	}
	c.seen.Add(leaf, resp, certificateTTL)
	return c.unlessRefused(r, leaf, resp)
}

func (c *certificates) unlessRefused(
	r *http.Request, leaf *x509.Certificate, resp *authenticator.Response,
) (*authenticator.Response, bool, error) {
	if err := c.refuse(r.Context(), leaf, r.Method == http.MethodPost && r.URL.Path == "/api/v1/nodes"); err != nil {
		return nil, false, err
	}
	return copyOf(resp), true, nil
}

// copyOf protects a kept response: callers set fields of what they get.
func copyOf(r *authenticator.Response) *authenticator.Response {
	c := *r
	return &c
}

type clock func() time.Time

func (c clock) Now() time.Time { return c() }
