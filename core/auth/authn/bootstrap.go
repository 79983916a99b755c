// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/util/secrets"
	"k8s.io/cluster-bootstrap/util/tokens"

	"github.com/wasmplane/wasmplane/core/auth/jointoken"
)

// bootstrapTokens identify machines that want to join: ID.SECRET of a Secret of
// type bootstrap.kubernetes.io/token in kube-system.
type bootstrapTokens struct {
	client kubernetes.Interface
	now    func() time.Time
}

// NewBootstrapTokens reads the Secrets through client, which needs the right to
// get them. Every token is looked up anew: one that is deleted is refused at once.
func NewBootstrapTokens(client kubernetes.Interface, audiences []string, now func() time.Time) authenticator.Token {
	if now == nil {
		now = time.Now
	}
	return authenticator.WrapAudienceAgnosticToken(audiences, &bootstrapTokens{client, now})
}

func (b *bootstrapTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	id, secret, err := tokens.ParseToken(token)
	if err != nil {
		return nil, false, nil //nolint:nilerr // somebody else's token
	}
	found, err := b.client.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, api.BootstrapTokenSecretPrefix+id, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("look up bootstrap token %s: %w", id, err)
	}
	if !b.usable(found, id, secret) {
		return nil, false, nil
	}
	groups, err := secrets.GetGroups(found)
	if err != nil {
		return nil, false, nil //nolint:nilerr // a group that no token may give
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: api.BootstrapUserPrefix + id, Groups: groups}}, true, nil
}

func (b *bootstrapTokens) usable(s *corev1.Secret, id, secret string) bool {
	return jointoken.Matches(s, secret) && s.DeletionTimestamp == nil && s.Type == corev1.SecretTypeBootstrapToken &&
		secrets.GetData(s, api.BootstrapTokenIDKey) == id && !secrets.HasExpired(s, b.now()) &&
		secrets.GetData(s, api.BootstrapTokenUsageAuthentication) == "true"
}
