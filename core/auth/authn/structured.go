// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/cel"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"github.com/wasmplane/wasmplane/core/auth/reloads"
	"github.com/wasmplane/wasmplane/core/dial"
)

// StructuredConfig names an AuthenticationConfiguration of apiserver.config.k8s.io.
type StructuredConfig struct {
	// File holds the document.
	File string
	// OwnIssuers sign the cluster's own tokens: an identity provider must not claim
	// to be one of them.
	OwnIssuers []string
	// Audiences of the apiserver, which tokens of identity providers get.
	Audiences []string
	// ServerID is the server's identity, whose hash is a label of the metrics of reloads.
	ServerID string
	// Patience is how long a reload waits for new providers to answer before it
	// keeps the old ones; default 30 s.
	Patience time.Duration
	// Dial says where providers may be; nil: an operator's policy.
	Dial *dial.Policy
	Log  *slog.Logger
}

const (
	// providerAnswer bounds what a provider answers: its description, its keys, claims
	// that it keeps elsewhere. Real ones have some KiB.
	providerAnswer = 1 << 20
	providerTime   = 30 * time.Second // as upstream
)

// Structured is the part of authentication that a file describes: OpenID Connect
// providers and who may be anonymous. A new file is taken on by Reload; one that
// is wrong, or whose providers do not answer, changes nothing.
type Structured struct {
	cfg      StructuredConfig
	compiler cel.Compiler
	decoder  runtime.Decoder
	current  atomic.Pointer[providers]
	changed  func() // told after a reload
	old      context.CancelFunc
}

// providers are those of one version of the file.
type providers struct {
	config *apiserver.AuthenticationConfiguration
	tokens authenticator.Token // nil: none, or not started yet
	stop   context.CancelFunc
}

// NewStructured reads the file. Its providers are asked once Run has begun.
func NewStructured(cfg StructuredConfig) (*Structured, error) {
	if cfg.Patience <= 0 {
		cfg.Patience = 30 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	s := &Structured{
		cfg: cfg, compiler: cel.NewDefaultCompiler(),
		decoder: serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(),
	}
	config, err := s.read()
	if err != nil {
		return nil, err
	}
	s.current.Store(&providers{config: config})
	return s, nil
}

func (s *Structured) read() (*apiserver.AuthenticationConfiguration, error) {
	data, err := os.ReadFile(s.cfg.File)
	if err != nil {
		return nil, fmt.Errorf("read the authentication configuration: %w", err)
	}
	if len(data) == 0 {
		return nil, fmt.Errorf("%s is empty: it begins with apiVersion: apiserver.config.k8s.io/v1 and kind: AuthenticationConfiguration", s.cfg.File)
	}
	decoded, err := runtime.Decode(s.decoder, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.cfg.File, err)
	}
	config, ok := decoded.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("%s: expected kind AuthenticationConfiguration, found %T", s.cfg.File, decoded)
	}
	if errs := validation.ValidateAuthenticationConfiguration(s.compiler, config, s.cfg.OwnIssuers); len(errs) > 0 {
		return nil, fmt.Errorf("%s: %w", s.cfg.File, errs.ToAggregate())
	}
	return config, nil
}

// Run asks the file's providers until ctx ends.
func (s *Structured) Run(ctx context.Context) error {
	first := s.current.Load()
	started, _, err := s.start(ctx, first.config)
	if err != nil {
		return err
	}
	s.current.Store(started)
	<-ctx.Done()
	return nil // every provider's context is made of ctx
}

// start makes the authenticators of config; they fetch their providers' keys by themselves.
func (s *Structured) start(ctx context.Context,
	config *apiserver.AuthenticationConfiguration,
) (*providers, []oidc.AuthenticatorTokenWithHealthCheck, error) {
	ctx, stop := context.WithCancel(ctx)
	p := &providers{config: config, stop: stop}
	var tokens []authenticator.Token
	var health []oidc.AuthenticatorTokenWithHealthCheck
	for _, jwt := range config.JWT {
		o := oidc.Options{
			JWTAuthenticator: jwt, Compiler: s.compiler, SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(),
			DisallowedIssuers: s.cfg.OwnIssuers, APIServerID: "wasmplane",
		}
		trust := &tls.Config{MinVersion: tls.VersionTLS12}
		if ca := jwt.Issuer.CertificateAuthority; ca != "" {
			trust.RootCAs = x509.NewCertPool()
			if !trust.RootCAs.AppendCertsFromPEM([]byte(ca)) {
				stop()
				return nil, nil, fmt.Errorf("issuer %s: certificateAuthority has no certificate in it: expected PEM", jwt.Issuer.URL)
			}
		}
		o.Client = s.cfg.Dial.Or().Client(trust, providerTime, providerAnswer)
		o.Client.Transport = boundKeys(o.Client.Transport)
		a, err := oidc.New(ctx, o)
		if err != nil {
			stop()
			return nil, nil, fmt.Errorf("issuer %s: %w", jwt.Issuer.URL, err)
		}
		tokens, health = append(tokens, authenticator.WrapAudienceAgnosticToken(s.cfg.Audiences, a)), append(health, a)
	}
	if len(tokens) > 0 {
		p.tokens = tokenunion.New(tokens...)
	}
	return p, health, nil
}

// Reload takes the file on as it is now. ctx is the one of Run. Its ends are counted under upstream's names.
func (s *Structured) Reload(ctx context.Context) error {
	err := s.reload(ctx)
	reloads.Authentication.Ended(s.cfg.ServerID, err)
	return err
}

func (s *Structured) reload(ctx context.Context) error {
	config, err := s.read()
	if err != nil {
		return err
	}
	next, health, err := s.start(ctx, config)
	if err != nil {
		return fmt.Errorf("%s: %w", s.cfg.File, err)
	}
	if err := s.await(ctx, health); err != nil {
		next.stop()
		return fmt.Errorf("%s: %w", s.cfg.File, err)
	}
	before := s.current.Swap(next)
	// Requests that are just being checked still use the old keys: the providers
	// before these end with the next reload.
	if s.old != nil {
		s.old()
	}
	s.old = before.stop
	if s.changed != nil {
		s.changed()
	}
	return nil
}

// await waits until every provider has answered.
func (s *Structured) await(ctx context.Context, all []oidc.AuthenticatorTokenWithHealthCheck) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var errs []error
		for _, a := range all {
			errs = append(errs, a.HealthCheck())
		}
		err := errors.Join(errs...)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %s: %w", s.cfg.Patience, err)
		case <-tick.C:
		}
	}
}

// AuthenticateToken implements authenticator.Token.
func (s *Structured) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	tokens := s.current.Load().tokens
	if tokens == nil {
		return nil, false, nil
	}
	return tokens.AuthenticateToken(ctx, token)
}

// anonymous says whether path may be asked for by nobody in particular; ok is
// false where the file leaves that to the default.
func (s *Structured) anonymous(path string) (allowed, ok bool) {
	a := s.current.Load().config.Anonymous
	if a == nil {
		return false, false
	}
	if !a.Enabled || len(a.Conditions) == 0 {
		return a.Enabled, true
	}
	return slices.ContainsFunc(a.Conditions, func(c apiserver.AnonymousAuthCondition) bool { return c.Path == path }), true
}
