package wire

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/api/satoken"
	"github.com/wasmplane/wasmplane/core/controllers/serviceaccount"
)

// minter signs the tokens of token secrets. They are bound to their secret, and so
// end with it; until then they are good for ten years.
type minter struct{ signer *satoken.Signer }

const tokenSecretSeconds = 10 * 365 * 24 * 60 * 60

// tokenSecrets makes a minter; without a signer token secrets stay empty.
func tokenSecrets(s *satoken.Signer) serviceaccount.Minter {
	if s == nil {
		return nil
	}
	return minter{s}
}

// LegacyToken implements serviceaccount.Minter.
func (m minter) LegacyToken(ctx context.Context, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	return m.signer.Sign(ctx, satoken.Request{
		ServiceAccount: account, Secret: secret, Audiences: []string{m.signer.Issuer()}, Seconds: tokenSecretSeconds,
	})
}
