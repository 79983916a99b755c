// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// tokenCache remembers good tokens for a few seconds. Bad ones are not kept: a
// stranger could push out the good ones with them. Tokens themselves never stay
// in memory, only their hashes under a key that nobody else has.
type tokenCache struct {
	inner authenticator.Token
	key   []byte
	ttl   time.Duration
	seen  *cache.LRUExpireCache
}

type cachedToken struct {
	response    *authenticator.Response
	annotations map[string]string // for the audit log, as if the token had been checked
}

func newTokenCache(inner authenticator.Token, size int, ttl time.Duration, now func() time.Time) (*tokenCache, error) {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make a key for the token cache: %w", err)
	}
	return &tokenCache{inner: inner, key: key, ttl: ttl, seen: cache.NewLRUExpireCacheWithClock(size, clock(now))}, nil
}

func (c *tokenCache) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	auds, _ := authenticator.AudiencesFrom(ctx)
	key := c.hash(auds, token)
	if v, ok := c.seen.Get(key); ok {
		known := v.(*cachedToken)
		audit.AddAuditAnnotationsMap(ctx, known.annotations)
		return copyOf(known.response), true, nil
	}
	inner := audit.WithAuditContext(ctx)
	resp, ok, err := c.inner.AuthenticateToken(inner, token)
	annotations := audit.AuditContextFrom(inner).GetEventAnnotations()
	audit.AddAuditAnnotationsMap(ctx, annotations)
	if err == nil && ok {
		c.seen.Add(key, &cachedToken{resp, annotations}, c.ttl)
		resp = copyOf(resp)
	}
	return resp, ok, err
}

// forget makes every token be checked again.
func (c *tokenCache) forget() { c.seen.RemoveAll(func(any) bool { return true }) }

// hash covers the audiences, because a token can be good for one and not for
// another. Lengths keep ("ab","c") and ("a","bc") apart.
func (c *tokenCache) hash(auds []string, token string) [sha256.Size]byte {
	h := hmac.New(sha256.New, c.key)
	for _, s := range append(auds[:len(auds):len(auds)], token) {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	return [sha256.Size]byte(h.Sum(nil))
}
