// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/wasmplane/wasmplane/core/api/nodeauth"
	"github.com/wasmplane/wasmplane/core/api/rbac"
	"github.com/wasmplane/wasmplane/core/api/satoken"
	"github.com/wasmplane/wasmplane/core/auth/authn"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
)

// follow is a file that a component takes on again when it changes.
type follow struct {
	run.Follow
	seen [sha256.Size]byte
}

// following adds files to those that are read again. It is called before the
// component reads them, so that no change is missed in between.
func (s *server) following(what string, apply func(context.Context) error, files ...string) {
	f := &follow{Follow: run.Follow{What: what, Files: files, Apply: apply, Log: s.o.Logger, Note: s.o.Note}}
	f.seen = f.Seen()
	s.follows = append(s.follows, f)
}

func (s *server) followFiles(ctx context.Context) error {
	var work []func(context.Context) error
	for _, f := range s.follows {
		work = append(work, func(ctx context.Context) error { return f.Run(ctx, f.seen) })
	}
	if s.structured != nil {
		work = append(work, s.structured.Run)
	}
	work = append(work, func(ctx context.Context) error { <-ctx.Done(); return nil })
	return run.Parallel(work...)(ctx)
}

// signingKeys are the key that signs service account tokens, and all whose tokens
// are accepted.
func (s *server) signingKeys() (crypto.Signer, satoken.Keys, error) {
	signer, err := tokenSigner(s.o, s.authority)
	if err != nil {
		return nil, nil, err
	}
	var files []string
	for _, f := range s.o.Config.APIServer.ServiceAccountKeyFiles {
		files = append(files, s.o.Config.Path(f))
	}
	others, err := satoken.ReadKeys(files)
	if err != nil {
		return nil, nil, err
	}
	keys, err := satoken.StaticKeys(append([]any{signer}, others...)...)
	return signer, keys, err
}

// tokenSigner is the key that signs service account tokens.
func tokenSigner(o Options, authority *pki.Authority) (crypto.Signer, error) {
	if f := o.Config.APIServer.ServiceAccountSigningKeyFile; f != "" {
		return satoken.ReadSigningKey(o.Config.Path(f))
	}
	return authority.ServiceAccountKey(), nil
}

func (s *server) authentication() (*authn.Authenticator, *authn.Issuer, map[string]http.Handler, error) {
	c := s.o.Config.APIServer
	issuers := append([]string{c.ServiceAccountIssuer}, c.ServiceAccountOldIssuers...)
	audiences := c.APIAudiences
	if len(audiences) == 0 {
		audiences = issuers
	}
	signer, keys, err := s.signingKeys()
	if err != nil {
		return nil, nil, nil, err
	}
	if s.minter, err = satoken.NewSigner(c.ServiceAccountIssuer, signer); err != nil {
		return nil, nil, nil, err
	}
	cfg := authn.Config{
		ServiceAccounts: satoken.NewAuthenticator(issuers, keys, audiences, authn.NewObjects(s.internal.Kube, s.informers)),
		TokenFile:       s.o.Config.Path(c.TokenFile), Audiences: audiences,
	}
	if c.BootstrapTokens {
		cfg.Tokens = []authenticator.Token{authn.NewBootstrapTokens(s.internal.Kube, audiences, nil)}
	}
	if err := s.certificateAuthorities(&cfg); err != nil {
		return nil, nil, nil, err
	}
	if err := s.identityFiles(&cfg, issuers); err != nil {
		return nil, nil, nil, err
	}
	a, err := authn.New(cfg)
	if err != nil {
		return nil, nil, nil, err
	}
	issuer, err := authn.NewIssuer(authn.IssuerConfig{
		Signer: s.minter, Objects: authn.NewLiveObjects(s.internal.Kube), Audiences: audiences,
		MaxLifetime: time.Duration(c.ServiceAccountMaxTokenLifetime),
	})
	if err != nil {
		return nil, nil, nil, err
	}
	meta, err := satoken.NewMetadata(c.ServiceAccountIssuer, "", net.JoinHostPort(s.advertise.String(), strconv.Itoa(s.port)), keys)
	if err != nil {
		return nil, nil, nil, err
	}
	return a, issuer, authn.OpenID(meta), nil
}

// identityFiles are the sources of identity that files describe and that may
// change while the server runs.
func (s *server) identityFiles(cfg *authn.Config, issuers []string) (err error) {
	c := s.o.Config.APIServer
	if c.AuthenticationConfigFile != "" {
		file := s.o.Config.Path(c.AuthenticationConfigFile)
		s.following("the authentication configuration", func(ctx context.Context) error { return s.structured.Reload(ctx) }, file)
		if s.structured, err = authn.NewStructured(authn.StructuredConfig{File: file, OwnIssuers: issuers, Audiences: cfg.Audiences, Dial: operatorsDial(s.o), Log: s.o.Logger}); err != nil {
			return fmt.Errorf("apiserver.authenticationConfigFile: %w", err)
		}
		cfg.Structured = s.structured
	}
	if w := c.TokenWebhook; w.ConfigFile != "" {
		file := s.o.Config.Path(w.ConfigFile)
		s.following("the kubeconfig of the token webhook", func(ctx context.Context) error { return cfg.Webhook.Reload(ctx) }, file)
		if cfg.Webhook, err = authn.NewWebhook(authn.WebhookConfig{
			File: file, Version: w.Version, CacheTTL: time.Duration(w.CacheTTL), Timeout: time.Duration(w.Timeout), Audiences: cfg.Audiences, Dial: operatorsDial(s.o),
		}); err != nil {
			return fmt.Errorf("apiserver.tokenWebhook.configFile: %w", err)
		}
	}
	if c.BasicAuthFile != "" {
		file := s.o.Config.Path(c.BasicAuthFile)
		s.following("the file of passwords", func(ctx context.Context) error { return cfg.Basic.Reload(ctx) }, file)
		if cfg.Basic, err = authn.NewBasic(file, nil); err != nil {
			return fmt.Errorf("apiserver.basicAuthFile: %w", err)
		}
	}
	return nil
}

// certificateAuthorities vouch for clients and for authenticating proxies: the
// cluster's own, which are renewed while the server runs, and those of files.
func (s *server) certificateAuthorities(cfg *authn.Config) error {
	c := s.o.Config.APIServer
	var clients []*x509.Certificate
	for _, f := range c.ClientCAFiles {
		found, err := pki.ReadCertificates(s.o.Config.Path(f))
		if err != nil {
			return fmt.Errorf("apiserver.clientCAFiles: %w", err)
		}
		clients = append(clients, found...)
	}
	h := c.RequestHeader
	proxies, err := []*x509.Certificate(nil), error(nil)
	if h.ClientCAFile != "" {
		if proxies, err = pki.ReadCertificates(s.o.Config.Path(h.ClientCAFile)); err != nil {
			return fmt.Errorf("apiserver.requestHeader.clientCAFile: %w", err)
		}
	}
	cfg.ClientCAs = pool(s.authority.ClusterCA, clients)
	cfg.FrontProxy = &authn.FrontProxy{
		CAs: pool(s.authority.FrontProxyCA, proxies), Names: append([]string{pki.FrontProxyClient().User}, h.AllowedNames...),
		UserHeaders: h.UsernameHeaders, UIDHeaders: h.UIDHeaders, GroupHeaders: h.GroupHeaders, ExtraPrefixes: h.ExtraHeaderPrefixes,
	}
	return nil
}

func pool(own func() *x509.Certificate, others []*x509.Certificate) func() *x509.CertPool {
	return func() *x509.CertPool {
		p := x509.NewCertPool()
		p.AddCert(own())
		for _, c := range others {
			p.AddCert(c)
		}
		return p
	}
}

// authorization is the chain: in the order of a file, or else Wasm authorizers
// that stand before, the Node authorizer, RBAC, Wasm authorizers that stand behind.
func (s *server) authorization() (*authz.Chain, error) {
	r := s.informers.Rbac().V1()
	s.roles = rbac.NewAuthorizer(s.rolesRead, r.Roles().Lister(), r.RoleBindings().Lister(), r.ClusterRoles().Lister(), r.ClusterRoleBindings().Lister())
	s.node = nodeauth.New(s.informers)
	order := authz.DefaultEntries()
	if f := s.o.Config.APIServer.AuthorizationConfigFile; f != "" {
		file := s.o.Config.Path(f)
		s.following("the authorization configuration", func(context.Context) error { return s.reorder(file) }, append([]string{file}, authz.WebhookFiles(file)...)...)
		var err error
		if order, err = authz.LoadFile(file, *operatorsDial(s.o)); err != nil {
			return nil, fmt.Errorf("apiserver.authorizationConfigFile: %w", err)
		}
	}
	s.order.Store(&order)
	chain, err := authz.NewChain(s.authorizers(order)...)
	if err != nil {
		return nil, err
	}
	s.chain = chain
	s.access.Use(chain)
	s.plugins.onChange(func() {
		if err := chain.Replace(s.authorizers(*s.order.Load())...); err != nil {
			s.o.Logger.Error("the authorizers stay as they were", "error", err)
		}
	})
	return chain, nil
}

func (s *server) reorder(file string) error {
	order, err := authz.LoadFile(file, *operatorsDial(s.o))
	if err != nil {
		return err
	}
	if err := s.chain.Replace(s.authorizers(order)...); err != nil {
		return err
	}
	s.order.Store(&order)
	return nil
}

func (s *server) authorizers(order []authz.Entry) []authz.Authorizer {
	before, after := s.plugins.authorizers()
	return authz.Arrange(order, authz.Native{Node: authz.Named("Node", s.node), RBAC: authz.Named("RBAC", s.roles)}, before, after)
}
