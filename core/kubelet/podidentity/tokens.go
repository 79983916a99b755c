// SPDX-License-Identifier: Apache-2.0

package podidentity

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Tokens requests tokens for the service accounts of pods, bound to the pod, and
// keeps each until most of its life is over.
type Tokens struct {
	client kubernetes.Interface

	mu   sync.Mutex
	held map[tokenKey]heldToken
}

type tokenKey struct {
	pod      types.UID
	audience string
	seconds  int64
}

type heldToken struct {
	token   string
	refresh time.Time
	expires time.Time
}

// NewTokens makes Tokens that asks by client.
func NewTokens(client kubernetes.Interface) *Tokens {
	return &Tokens{client: client, held: map[tokenKey]heldToken{}}
}

func keyOf(p *corev1.Pod, src *corev1.ServiceAccountTokenProjection) tokenKey {
	k := tokenKey{pod: p.UID, audience: src.Audience}
	if src.ExpirationSeconds != nil {
		k.seconds = *src.ExpirationSeconds
	}
	return k
}

// Get answers a token for the pod's service account, and when it ends.
func (t *Tokens) Get(ctx context.Context, p *corev1.Pod,
	src *corev1.ServiceAccountTokenProjection,
) (token string, expires time.Time, err error) {
	key := keyOf(p, src)
	t.mu.Lock()
	have, ok := t.held[key]
	t.mu.Unlock()
	now := time.Now()
	if ok && now.Before(have.refresh) {
		return have.token, have.expires, nil
	}
	req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: src.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID},
	}}
	if src.Audience != "" {
		req.Spec.Audiences = strings.Fields(src.Audience)
	}
	got, err := t.client.CoreV1().ServiceAccounts(p.Namespace).CreateToken(ctx, p.Spec.ServiceAccountName, req, metav1.CreateOptions{})
	if err != nil {
		if ok && now.Before(have.expires) {
			// It is good for a while yet; the next refresh tries again.
			return have.token, have.expires, nil
		}
		return "", time.Time{}, fmt.Errorf("failed to fetch token: %w", err)
	}
	h := heldToken{token: got.Status.Token, expires: got.Status.ExpirationTimestamp.Time}
	h.refresh = refreshTime(now, h.expires)
	t.mu.Lock()
	maps.DeleteFunc(t.held, func(_ tokenKey, other heldToken) bool { return !now.Before(other.expires) })
	t.held[key] = h
	t.mu.Unlock()
	return h.token, h.expires, nil
}

// refreshTime is when four fifths of a token's life are over, or a day.
func refreshTime(now, expires time.Time) time.Time {
	life := expires.Sub(now)
	return now.Add(min(life*4/5, 24*time.Hour))
}

// RefreshAt is when a token that was given should be replaced; zero for one that was not.
func (t *Tokens) RefreshAt(p *corev1.Pod, src *corev1.ServiceAccountTokenProjection) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	h, ok := t.held[keyOf(p, src)]
	if !ok {
		return time.Time{}
	}
	if now := time.Now(); h.refresh.Before(now) {
		return now.Add(10 * time.Second) // the last request failed
	}
	return h.refresh
}

// Forget drops the tokens of a pod.
func (t *Tokens) Forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.held {
		if k.pod == uid {
			delete(t.held, k)
		}
	}
}
