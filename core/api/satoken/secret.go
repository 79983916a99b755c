// SPDX-License-Identifier: Apache-2.0

package satoken

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// SecretTokens signs the tokens of token secrets, as upstream does: they have no end of their own,
// and hold until their Secret is deleted or labelled as invalid.
type SecretTokens struct{ Signer *Signer }

// LegacyToken implements core/controllers/serviceaccount.Minter.
func (s SecretTokens) LegacyToken(ctx context.Context, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	public, private := serviceaccount.LegacyClaims(*account, *secret)
	token, err := s.Signer.legacy.GenerateToken(ctx, public, private)
	if err != nil {
		return "", fmt.Errorf("sign the token of secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return token, nil
}

// NewLegacyAuthenticator checks tokens of token secrets, those that upstream made with one of the keys too. It refuses them
// once their Secret holds another token, is gone or is labelled with kubernetes.io/legacy-token-invalid-since, and labels the Secret, by
// secrets, with the day of the use.
func NewLegacyAuthenticator(keys Keys, audiences []string, get Getter, secrets typedcorev1.SecretsGetter) (authenticator.Token, error) {
	v, err := serviceaccount.NewLegacyValidator(true, get, secrets)
	if err != nil {
		return nil, fmt.Errorf("authenticator of tokens in secrets: %w", err)
	}
	return serviceaccount.JWTTokenAuthenticator([]string{serviceaccount.LegacyIssuer}, keys, audiences, v), nil
}
