// SPDX-License-Identifier: Apache-2.0

// Package credential asks the node's programs for what pulling an image needs: upstream's
// image credential providers (KEP-2133, KEP-4412). Such a program reads a
// CredentialProviderRequest and writes a CredentialProviderResponse, which is kept as long as it says.
//
// A program that hangs, crashes or lies keeps up the pulls of the images that it is for: its
// time and its output are bounded, and nothing is held while it runs. What it writes as errors
// goes to the node's log alone, because that may be a secret.
package credential

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	configv1 "k8s.io/kubelet/config/v1"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/podidentity"
	"github.com/wasmplane/wasmplane/core/kubelet/pull"
)

const (
	// within bounds a run of a program, as upstream.
	within = time.Minute
	// mostAnswers of one program are kept.
	mostAnswers = 1024
)

// Config of a Manager.
type Config struct {
	// Providers, as Read has them, in the order in which their answers are tried.
	Providers []configv1.CredentialProvider
	// BinDir has their programs.
	BinDir string
	// Client of the API, for tokens of service accounts.
	Client kubernetes.Interface
	// Timeout of one run of a program (a minute if zero).
	Timeout time.Duration
	Logger  *slog.Logger
}

// Manager of a node's providers.
type Manager struct {
	cfg       Config
	tokens    *podidentity.Tokens
	providers []*provider
}

// provider is one program, and what it has answered.
type provider struct {
	configv1.CredentialProvider
	mu      sync.Mutex
	answers map[string]answer
}

// answer is kept until it expires.
type answer struct {
	auth    map[string]api.AuthConfig
	expires time.Time
}

// New makes a Manager.
func New(cfg Config) *Manager {
	if cfg.Timeout <= 0 {
		cfg.Timeout = within
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Manager{cfg: cfg, tokens: podidentity.NewTokens(cfg.Client)}
	for _, p := range cfg.Providers {
		m.providers = append(m.providers, &provider{CredentialProvider: p, answers: map[string]answer{}})
	}
	return m
}

// For a pod's image: what the programs answer that are for it, theirs first that stand first.
// The error says which of them did not; what the others answered comes with it.
func (m *Manager) For(ctx context.Context, p *corev1.Pod, image string) (*pull.Keyring, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", image, err)
	}
	var first, last *pull.Keyring
	var failed []error
	for _, one := range m.providers {
		if !slices.ContainsFunc(one.MatchImages, func(pattern string) bool { return matches(pattern, named) }) {
			continue
		}
		auth, err := m.ask(ctx, one, p, named)
		if err != nil {
			failed = append(failed, fmt.Errorf("credential provider %s: %w", one.Name, err))
			continue
		}
		ring := &pull.Keyring{}
		for pattern, a := range auth {
			ring.Add(pattern, a.Username, a.Password)
		}
		if first == nil {
			first = ring
		} else {
			last.Next = ring
		}
		last = ring
	}
	return first, errors.Join(failed...)
}

// ask takes a kept answer, or has the program run.
func (m *Manager) ask(ctx context.Context, one *provider, p *corev1.Pod, image reference.Named) (map[string]api.AuthConfig, error) {
	request := api.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: one.APIVersion, Kind: "CredentialProviderRequest"}, Image: image.Name(),
	}
	account, skip, err := m.account(ctx, one, p, &request)
	if err != nil || skip {
		return nil, err
	}
	token := func() (err error) {
		audience := one.TokenAttributes.ServiceAccountTokenAudience
		request.ServiceAccountToken, _, err = m.tokens.Get(ctx, p, &corev1.ServiceAccountTokenProjection{Audience: audience})
		return err
	}
	perToken := one.TokenAttributes != nil && one.TokenAttributes.CacheType == configv1.TokenServiceAccountTokenCacheType
	if account != "" && perToken {
		if err := token(); err != nil {
			return nil, err
		}
		account += "\n" + request.ServiceAccountToken
	}
	if a, ok := one.kept(account, image); ok {
		return a, nil
	}
	if account != "" && !perToken {
		if err := token(); err != nil {
			return nil, err
		}
	}
	response, err := m.exec(ctx, one, &request)
	if err != nil {
		return nil, err
	}
	keep := one.DefaultCacheDuration.Duration
	if d := response.CacheDuration; d != nil {
		keep = d.Duration
	}
	return response.Auth, one.keep(response, account, image, keep)
}

// account adds to the request what the program wants of the pod's service account, and answers
// what tells its answers apart from those for another. skip: the pod has none, and the program wants one.
func (m *Manager) account(ctx context.Context, one *provider, p *corev1.Pod,
	r *api.CredentialProviderRequest,
) (key string, skip bool, err error) {
	t := one.TokenAttributes
	if t == nil {
		return "", false, nil
	}
	name := p.Spec.ServiceAccountName
	if name == "" {
		return "", *t.RequireServiceAccount, nil
	}
	sa, err := m.cfg.Client.CoreV1().ServiceAccounts(p.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", false, fmt.Errorf("look at service account %s/%s: %w", p.Namespace, name, err)
	}
	r.ServiceAccountAnnotations = map[string]string{}
	for _, k := range t.RequiredServiceAccountAnnotationKeys {
		v, ok := sa.Annotations[k]
		if !ok {
			return "", false, fmt.Errorf("service account %s/%s has no annotation %s, which the provider requires", p.Namespace, name, k)
		}
		r.ServiceAccountAnnotations[k] = v
	}
	for _, k := range t.OptionalServiceAccountAnnotationKeys {
		if v, ok := sa.Annotations[k]; ok {
			r.ServiceAccountAnnotations[k] = v
		}
	}
	id, err := json.Marshal([]any{sa.Namespace, sa.Name, sa.UID, r.ServiceAccountAnnotations})
	return string(id), false, err
}

// keyOf an answer that is for an image, a registry or all.
func keyOf(of api.PluginCacheKeyType, account string, image reference.Named) (string, error) {
	scope := ""
	switch of {
	case api.ImagePluginCacheKeyType:
		scope = image.Name()
	case api.RegistryPluginCacheKeyType:
		scope = reference.Domain(image)
	case api.GlobalPluginCacheKeyType:
	default:
		return "", fmt.Errorf("it answers with the cacheKeyType %q: expected Image, Registry or Global", of)
	}
	sum := sha256.Sum256([]byte(string(of) + "\n" + scope + "\n" + account))
	return hex.EncodeToString(sum[:]), nil
}

// kept answers for an image, from the narrowest to the widest.
func (p *provider) kept(account string, image reference.Named) (map[string]api.AuthConfig, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(p.answers, func(_ string, a answer) bool { return !now.Before(a.expires) })
	for _, of := range []api.PluginCacheKeyType{api.ImagePluginCacheKeyType, api.RegistryPluginCacheKeyType, api.GlobalPluginCacheKeyType} {
		key, err := keyOf(of, account, image)
		if a, ok := p.answers[key]; err == nil && ok {
			return a.auth, true
		}
	}
	return nil, false
}

func (p *provider) keep(r *api.CredentialProviderResponse, account string, image reference.Named, how time.Duration) error {
	key, err := keyOf(r.CacheKeyType, account, image)
	if err != nil || how <= 0 {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.answers) < mostAnswers {
		p.answers[key] = answer{r.Auth, time.Now().Add(how)}
	}
	return nil
}
