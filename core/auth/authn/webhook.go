// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	tokenwebhook "k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"

	"github.com/wasmplane/wasmplane/core/dial"
)

// WebhookConfig names who else knows bearer tokens.
type WebhookConfig struct {
	// File is a kubeconfig: its cluster is who is asked, its user as whom.
	File string
	// Version of authentication.k8s.io that reviews have: v1 (also "") or v1beta1.
	Version string
	// CacheTTL is how long an answer, yes or no, is remembered; 0: 2 minutes. A
	// negative value: not at all.
	CacheTTL time.Duration
	// Timeout of one question; 0: 30 s.
	Timeout time.Duration
	// Audiences of the apiserver, which tokens get where the answer names none.
	Audiences []string
	// Dial says where the service may be; nil: an operator's policy.
	Dial *dial.Policy
}

// webhookAnswer bounds a TokenReview that comes back, in bytes.
const webhookAnswer = 1 << 20

// Webhook asks a service about bearer tokens, by TokenReviews. A service that does
// not answer is an error: the request is refused, and nobody is taken for anonymous.
type Webhook struct {
	cfg     WebhookConfig
	current atomic.Pointer[authenticator.Token]
	changed func() // told after a reload
}

// NewWebhook reads the file.
func NewWebhook(cfg WebhookConfig) (*Webhook, error) {
	if cfg.Version == "" {
		cfg.Version = "v1"
	}
	if cfg.CacheTTL == 0 {
		cfg.CacheTTL = 2 * time.Minute
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 30 * time.Second
	}
	w := &Webhook{cfg: cfg}
	return w, w.load()
}

func (w *Webhook) load() error {
	config, err := webhookutil.LoadKubeconfig(w.cfg.File, w.cfg.Dial.Or().Context())
	if err != nil {
		return fmt.Errorf("read the kubeconfig of the token webhook: %w", err)
	}
	config.Timeout = w.cfg.Timeout
	config.Wrap(dial.Webhook(webhookAnswer))
	hook, err := tokenwebhook.New(config, w.cfg.Version, w.cfg.Audiences, *tokenwebhook.DefaultRetryBackoff())
	if err != nil {
		return fmt.Errorf("token webhook %s: %w", w.cfg.File, err)
	}
	var next authenticator.Token = hook
	if w.cfg.CacheTTL > 0 {
		// Errors are not kept: who was down a moment ago may be up again.
		next = tokencache.New(hook, false, w.cfg.CacheTTL, w.cfg.CacheTTL)
	}
	w.current.Store(&next)
	return nil
}

// Reload takes the file on as it is now, and forgets what was answered before.
func (w *Webhook) Reload(context.Context) error {
	if err := w.load(); err != nil {
		return err
	}
	if w.changed != nil {
		w.changed()
	}
	return nil
}

// AuthenticateToken implements authenticator.Token.
func (w *Webhook) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return (*w.current.Load()).AuthenticateToken(ctx, token)
}
