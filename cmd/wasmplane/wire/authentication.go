// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/api/satoken"
	"github.com/wasmplane/wasmplane/core/auth/authn"
	"github.com/wasmplane/wasmplane/core/auth/removal"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/pki/cabundle"
	"github.com/wasmplane/wasmplane/core/run"
)

// authentication says who somebody is, and gives out tokens.
type authentication struct {
	*authn.Authenticator
	issuer *authn.Issuer
	minter *satoken.Signer
	openID map[string]http.Handler
	// vouching are the authorities of certificates by which clients and proxies identify.
	vouching func() []*x509.Certificate
	run      func(context.Context) error
}

// Review implements action.TokenReviewer.
func (a *authentication) Review(ctx context.Context, r *authenticationv1.TokenReview) error {
	return a.ReviewToken(ctx, r)
}

func newAuthentication(b base) (*authentication, error) {
	c := b.Options.Config.APIServer
	issuers := append([]string{c.ServiceAccountIssuer}, c.ServiceAccountOldIssuers...)
	audiences := c.APIAudiences
	if len(audiences) == 0 {
		audiences = issuers
	}
	signer, keys, err := b.signingKeys()
	if err != nil {
		return nil, err
	}
	objects := authn.NewObjects(b.internal.Kube, b.informers)
	ofSecrets, err := satoken.NewLegacyAuthenticator(keys, audiences, objects, b.internal.Kube.CoreV1())
	if err != nil {
		return nil, err
	}
	cfg := authn.Config{
		ServiceAccounts: satoken.NewAuthenticator(issuers, keys, audiences, objects), Tokens: []authenticator.Token{ofSecrets},
		TokenFile: b.Options.Config.Path(c.TokenFile), Audiences: audiences,
	}
	if c.BootstrapTokens {
		cfg.Tokens = append(cfg.Tokens, authn.NewBootstrapTokens(b.internal.Kube, audiences, nil))
	}
	vouching, err := b.certificateAuthorities(&cfg)
	if err != nil {
		return nil, err
	}
	if err := b.identityFiles(&cfg, issuers); err != nil {
		return nil, err
	}
	removed := removal.New(b.internal.Kube)
	cfg.RefuseCertificate = removed.Check
	b.lights.guard.Store(removed)
	a := &authentication{run: removed.Run, vouching: vouching}
	if cfg.Structured != nil {
		a.run = run.Parallel(removed.Run, cfg.Structured.Run)
	}
	if a.Authenticator, err = authn.New(cfg); err != nil {
		return nil, err
	}
	return a, a.giveTokens(b, signer, keys, audiences)
}

// giveTokens makes what gives out tokens of service accounts, and says to others how to
// check them.
func (a *authentication) giveTokens(b base, signer crypto.Signer, keys satoken.Keys, audiences []string) (err error) {
	c := b.Options.Config.APIServer
	if a.minter, err = satoken.NewSigner(c.ServiceAccountIssuer, signer); err != nil {
		return err
	}
	if a.issuer, err = authn.NewIssuer(authn.IssuerConfig{
		Signer: a.minter, Objects: authn.NewLiveObjects(b.internal.Kube), Audiences: audiences,
		MaxLifetime: time.Duration(c.ServiceAccountMaxTokenLifetime),
	}); err != nil {
		return err
	}
	meta, err := satoken.NewMetadata(c.ServiceAccountIssuer, "", net.JoinHostPort(b.Advertise.String(), strconv.Itoa(b.Port)), keys)
	if err != nil {
		return err
	}
	a.openID = authn.OpenID(meta)
	return nil
}

// identityFiles are the sources of identity that files describe and that may
// change while the server runs.
func (b base) identityFiles(cfg *authn.Config, issuers []string) (err error) {
	c := b.Options.Config.APIServer
	if c.AuthenticationConfigFile != "" {
		file := b.Options.Config.Path(c.AuthenticationConfigFile)
		b.follows.add("the authentication configuration", func(ctx context.Context) error { return cfg.Structured.Reload(ctx) }, file)
		id, err := b.Options.Dir.Identity()
		if err != nil {
			return err
		}
		if cfg.Structured, err = authn.NewStructured(authn.StructuredConfig{
			File: file, OwnIssuers: issuers, Audiences: cfg.Audiences, ServerID: id,
			Dial: process.OperatorsDial(b.Options), Log: b.Options.Logger,
		}); err != nil {
			return fmt.Errorf("apiserver.authenticationConfigFile: %w", err)
		}
	}
	if w := c.TokenWebhook; w.ConfigFile != "" {
		file := b.Options.Config.Path(w.ConfigFile)
		b.follows.add("the kubeconfig of the token webhook", func(ctx context.Context) error { return cfg.Webhook.Reload(ctx) }, file)
		if cfg.Webhook, err = authn.NewWebhook(authn.WebhookConfig{
			File: file, Version: w.Version, CacheTTL: time.Duration(w.CacheTTL), Timeout: time.Duration(w.Timeout), Audiences: cfg.Audiences,
			Dial: process.OperatorsDial(b.Options),
		}); err != nil {
			return fmt.Errorf("apiserver.tokenWebhook.configFile: %w", err)
		}
	}
	if c.BasicAuthFile != "" {
		file := b.Options.Config.Path(c.BasicAuthFile)
		b.follows.add("the file of passwords", func(ctx context.Context) error { return cfg.Basic.Reload(ctx) }, file)
		if cfg.Basic, err = authn.NewBasic(file, nil); err != nil {
			return fmt.Errorf("apiserver.basicAuthFile: %w", err)
		}
	}
	return nil
}

// signingKeys are the key that signs service account tokens, and all whose tokens
// are accepted.
func (b base) signingKeys() (crypto.Signer, satoken.Keys, error) {
	signer, err := b.Options.TokenKey(b.Authority)
	if err != nil {
		return nil, nil, err
	}
	var files []string
	for _, f := range b.Options.Config.APIServer.ServiceAccountKeyFiles {
		files = append(files, b.Options.Config.Path(f))
	}
	others, err := satoken.ReadKeys(files)
	if err != nil {
		return nil, nil, err
	}
	keys, err := satoken.StaticKeys(append([]any{signer}, others...)...)
	return signer, keys, err
}

// certificateAuthorities vouch for clients and for authenticating proxies: the
// cluster's own, which are renewed while the server runs, and those of files. It answers both.
func (b base) certificateAuthorities(cfg *authn.Config) (func() []*x509.Certificate, error) {
	c := b.Options.Config.APIServer
	var clients []*x509.Certificate
	for _, f := range c.ClientCAFiles {
		found, err := cabundle.Read(b.Options.Config.Path(f))
		if err != nil {
			return nil, fmt.Errorf("apiserver.clientCAFiles: %w", err)
		}
		clients = append(clients, found...)
	}
	h := c.RequestHeader
	proxies, err := []*x509.Certificate(nil), error(nil)
	if h.ClientCAFile != "" {
		if proxies, err = cabundle.Read(b.Options.Config.Path(h.ClientCAFile)); err != nil {
			return nil, fmt.Errorf("apiserver.requestHeader.clientCAFile: %w", err)
		}
	}
	cfg.ClientCAs = pool(b.Authority.TrustedCAs, clients)
	cfg.FrontProxy = &authn.FrontProxy{
		CAs: pool(b.Authority.TrustedFrontProxyCAs, proxies), Names: append([]string{pki.FrontProxyClient().User}, h.AllowedNames...),
		UserHeaders: h.UsernameHeaders, UIDHeaders: h.UIDHeaders, GroupHeaders: h.GroupHeaders, ExtraPrefixes: h.ExtraHeaderPrefixes,
	}
	return func() []*x509.Certificate {
		return slices.Concat(b.Authority.TrustedCAs(), clients, b.Authority.TrustedFrontProxyCAs(), proxies)
	}, nil
}

func pool(own func() []*x509.Certificate, others []*x509.Certificate) func() *x509.CertPool {
	return func() *x509.CertPool { return cabundle.Pool(slices.Concat(own(), others)...) }
}
