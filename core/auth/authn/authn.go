// SPDX-License-Identifier: Apache-2.0

// Package authn answers one question for the apiserver: who sends this request?
//
// It asks, in this order: a front proxy's headers, the client certificate, the
// bearer token (static token file, service account tokens, bootstrap tokens,
// OpenID Connect, a webhook), the name and password where that is configured, and, for
// health endpoints or what a configuration file names, it lets everyone in as
// system:anonymous. The first
// that knows the caller decides. A credential that is present but wrong refuses
// the request; it never falls back to anonymous.
//
// The errors of New's authenticator are for the log. What a client is told is
// always just "Unauthorized": not which authenticator failed, nor why.
package authn

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Config lists the sources of identity. Whatever is nil or empty is not asked.
type Config struct {
	// ClientCAs vouch for client certificates. It is a function because
	// authorities are renewed while the server runs.
	ClientCAs func() *x509.CertPool
	// RefuseCertificate is an error for a client certificate that holds no more before its
	// end. It is asked on each request; registers: the request makes a Node. nil: all hold.
	RefuseCertificate func(ctx context.Context, c *x509.Certificate, registers bool) error
	// FrontProxy trusts the identity headers of an authenticating proxy.
	FrontProxy *FrontProxy
	// TokenFile is a CSV file of token, user, uid and optionally "group1,group2".
	TokenFile string
	// ServiceAccounts checks service account tokens; core/api/satoken makes one.
	ServiceAccounts authenticator.Token
	// Tokens are asked after the others, in order; each must be aware of audiences.
	Tokens []authenticator.Token
	// Structured are OpenID Connect providers and the rule for the anonymous, from
	// a file.
	Structured *Structured
	// Webhook asks a service about tokens that nobody else knows; nil: nobody is asked.
	Webhook *Webhook
	// Basic accepts names with passwords; nil: nobody does.
	Basic *Basic
	// Audiences are the names by which tokens mean this apiserver; at least one.
	Audiences []string
	// AnonymousPaths may be read by anyone; default /livez, /readyz, /healthz.
	// Not nil and empty: none. Where Structured has a rule for the anonymous, that
	// one counts.
	AnonymousPaths []string
	// TokenCacheSize bounds how many tokens are remembered; default 8192.
	TokenCacheSize int
	// TokenCacheTTL is how long a good token is believed without being checked
	// again, and so how long one lives after its pod is gone; default 10 s.
	// A negative value switches the cache off.
	TokenCacheTTL time.Duration
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// FrontProxy names the proxies whose headers are believed.
type FrontProxy struct {
	// CAs vouch for the proxy's client certificate.
	CAs func() *x509.CertPool
	// Names are the common names that the certificate may have; empty: any.
	Names []string
	// Headers carry the identity; defaults X-Remote-User, X-Remote-Uid,
	// X-Remote-Group and X-Remote-Extra-.
	UserHeaders, UIDHeaders, GroupHeaders, ExtraPrefixes []string
}

func (c *Config) complete() error {
	if len(c.Audiences) == 0 {
		return errors.New("authn: Audiences is empty: name at least the service account issuer's URL")
	}
	if c.AnonymousPaths == nil {
		c.AnonymousPaths = []string{"/livez", "/readyz", "/healthz"}
	}
	if c.TokenCacheSize <= 0 {
		c.TokenCacheSize = 8192
	}
	if c.TokenCacheTTL == 0 {
		c.TokenCacheTTL = 10 * time.Second
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if p := c.FrontProxy; p != nil {
		if p.CAs == nil {
			return errors.New("authn: FrontProxy.CAs is nil: without an authority anyone could claim to be anyone")
		}
		p.complete()
	}
	return nil
}

func (p *FrontProxy) complete() {
	for _, d := range []struct {
		field *[]string
		value string
	}{
		{&p.UserHeaders, "X-Remote-User"},
		{&p.UIDHeaders, "X-Remote-Uid"},
		{&p.GroupHeaders, "X-Remote-Group"},
		{&p.ExtraPrefixes, "X-Remote-Extra-"},
	} {
		if len(*d.field) == 0 {
			*d.field = []string{d.value}
		}
	}
}

// Authenticator identifies requests. It implements authenticator.Request and
// authenticator.Token.
type Authenticator struct {
	requests   authenticator.Request
	tokens     authenticator.Token
	structured *Structured
	basic      *Basic
	anonymous  anonymous
	audiences  authenticator.Audiences
}

// New builds the chain.
func New(cfg Config) (*Authenticator, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	tokens, err := newTokens(cfg)
	if err != nil {
		return nil, err
	}
	var chain []authenticator.Request
	if p := cfg.FrontProxy; p != nil {
		chain = append(chain, authenticator.WrapAudienceAgnosticRequest(cfg.Audiences, headerrequest.NewDynamicVerifyOptionsSecure(
			verifyOptions(p.CAs, cfg.Now),
			headerrequest.StaticStringSlice(p.Names), headerrequest.StaticStringSlice(p.UserHeaders), headerrequest.StaticStringSlice(p.UIDHeaders),
			headerrequest.StaticStringSlice(p.GroupHeaders), headerrequest.StaticStringSlice(p.ExtraPrefixes),
		)))
	}
	if cfg.ClientCAs != nil {
		chain = append(chain, authenticator.WrapAudienceAgnosticRequest(cfg.Audiences, newCertificates(cfg)))
	}
	chain = append(chain, bearertoken.New(tokens), websocket.NewProtocolAuthenticator(tokens))
	return &Authenticator{
		requests:   group.NewAuthenticatedGroupAdder(union.New(chain...)),
		tokens:     group.NewTokenGroupAdder(tokens, []string{user.AllAuthenticated}),
		structured: cfg.Structured, basic: cfg.Basic, anonymous: anonymous{cfg.AnonymousPaths},
		audiences: cfg.Audiences,
	}, nil
}

func newTokens(cfg Config) (authenticator.Token, error) {
	var all []authenticator.Token
	if cfg.TokenFile != "" {
		file, err := tokenfile.NewCSV(cfg.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("read the token file: %w", err)
		}
		all = append(all, authenticator.WrapAudienceAgnosticToken(cfg.Audiences, file))
	}
	if cfg.ServiceAccounts != nil {
		all = append(all, cfg.ServiceAccounts)
	}
	all = append(all, cfg.Tokens...)
	if cfg.Structured != nil {
		all = append(all, cfg.Structured)
	}
	if cfg.Webhook != nil {
		all = append(all, cfg.Webhook)
	}
	tokens := authenticator.Token(shortTokens{tokenunion.New(all...)})
	if cfg.TokenCacheTTL <= 0 {
		return tokens, nil
	}
	cached, err := newTokenCache(tokens, cfg.TokenCacheSize, cfg.TokenCacheTTL, cfg.Now)
	if cfg.Structured != nil && err == nil {
		cfg.Structured.changed = cached.forget
	}
	if cfg.Webhook != nil && err == nil {
		cfg.Webhook.changed = cached.forget
	}
	return cached, err
}

// maxToken is how long a token may be. Those of identity providers with hundreds of groups have some 20 KiB.
const maxToken = 128 << 10

type tokenTooLongError struct{ bytes int }

func (e *tokenTooLongError) Error() string {
	return fmt.Sprintf("the token has %d bytes, and a token may have %d", e.bytes, maxToken)
}

// shortTokens keeps tokens that nobody has from being decoded, several times each.
type shortTokens struct{ authenticator.Token }

// AuthenticateToken implements authenticator.Token.
func (s shortTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if len(token) > maxToken {
		return nil, false, &tokenTooLongError{len(token)}
	}
	return s.Token.AuthenticateToken(ctx, token)
}

// AuthenticateRequest implements authenticator.Request. On success the
// credentials are taken off the request, so that nothing behind can log them or
// send them on.
func (a *Authenticator) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if _, ok := authenticator.AudiencesFrom(r.Context()); !ok {
		r = r.WithContext(authenticator.WithAudiences(r.Context(), a.audiences))
	}
	resp, ok, err := a.identify(r)
	if !ok || err != nil {
		return nil, false, err
	}
	if resp.User.GetName() != user.Anonymous && len(a.audiences.Intersect(resp.Audiences)) == 0 {
		return nil, false, fmt.Errorf("the credential of %q is meant for %q, not for this apiserver %q", resp.User.GetName(), resp.Audiences,
			a.audiences)
	}
	r.Header.Del("Authorization")
	return resp, true, nil
}

// AuthenticateToken implements authenticator.Token. The audiences are those of
// ctx, or this apiserver's.
func (a *Authenticator) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return a.tokens.AuthenticateToken(ctx, token)
}

// Audiences are the names by which tokens mean this apiserver.
func (a *Authenticator) Audiences() authenticator.Audiences { return a.audiences }

// identify asks for a certificate or a token, then for a password, and takes who
// shows none of them for anonymous where that is allowed. A password that is shown
// decides: a certificate that nobody knows does not spoil it.
func (a *Authenticator) identify(r *http.Request) (*authenticator.Response, bool, error) {
	resp, ok, err := a.requests.AuthenticateRequest(r)
	if ok && err == nil {
		return resp, true, nil
	}
	if a.basic != nil {
		if resp, ok, basicErr := a.basic.AuthenticateRequest(r); ok {
			resp.User = withAuthenticated(resp.User)
			return resp, true, nil
		} else if basicErr != nil {
			return nil, false, basicErr
		}
	}
	if err != nil {
		return nil, false, err
	}
	if a.structured != nil {
		if allowed, decided := a.structured.anonymous(r.URL.Path); decided {
			if !allowed || r.Header.Get("Authorization") != "" {
				return nil, false, nil
			}
			return nobody(r), true, nil
		}
	}
	return a.anonymous.AuthenticateRequest(r)
}

func withAuthenticated(u user.Info) user.Info {
	return &user.DefaultInfo{
		Name: u.GetName(), UID: u.GetUID(), Groups: append(slices.Clone(u.GetGroups()), user.AllAuthenticated),
		Extra: u.GetExtra(),
	}
}

// anonymous lets everyone read some paths. Only reads: a probe needs no more.
type anonymous struct{ paths []string }

func (a anonymous) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || !slices.Contains(a.paths, r.URL.Path) {
		return nil, false, nil
	}
	return nobody(r), true, nil
}

func nobody(r *http.Request) *authenticator.Response {
	auds, _ := authenticator.AudiencesFrom(r.Context())
	return &authenticator.Response{
		User:      &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}},
		Audiences: auds,
	}
}
