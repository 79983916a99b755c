// SPDX-License-Identifier: Apache-2.0

package satoken

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

const secretTokenSeconds = 10 * 365 * 24 * 60 * 60

// SecretTokens signs the tokens of token secrets. They are bound to their secret, and
// so end with it; until then they are good for ten years.
type SecretTokens struct{ Signer *Signer }

// LegacyToken implements core/controllers/serviceaccount.Minter.
func (s SecretTokens) LegacyToken(ctx context.Context, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	return s.Signer.Sign(ctx, Request{
		ServiceAccount: account, Secret: secret, Audiences: []string{s.Signer.Issuer()}, Seconds: secretTokenSeconds,
	})
}
