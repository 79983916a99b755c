// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
	lru "k8s.io/apimachinery/pkg/util/cache"
)

const (
	cachedAtMost = 10000
	// Lives of answers are bounded: a name must not be stuck for a day, and a busy
	// client must not make us ask for the same name all the time.
	longestLife  = time.Hour
	longestNo    = 5 * time.Minute
	shortestLife = 5 * time.Second
)

// cacheOf remembers what the host's resolvers said, as long as they allow
// (RFC 1035, 2308). The cluster's own names change at once and cost little, so
// they are not kept. CoreDNS's cache is not used because it drags in its metrics server.
type cacheOf struct {
	next plugin.Handler
	seen *lru.LRUExpireCache
	now  func() time.Time
}

type cacheKey struct {
	name   string
	kind   uint16
	do, cd bool
}

type cached struct {
	msg  *dns.Msg
	at   time.Time
	life time.Duration
}

func newCache(next plugin.Handler, now func() time.Time) *cacheOf {
	return &cacheOf{next: next, seen: lru.NewLRUExpireCacheWithClock(cachedAtMost, clock(now)), now: now}
}

type clock func() time.Time

func (c clock) Now() time.Time { return c() }

// Name implements plugin.Handler.
func (c *cacheOf) Name() string { return "cache" }

// ServeDNS implements plugin.Handler.
func (c *cacheOf) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	key := cacheKey{strings.ToLower(r.Question[0].Name), r.Question[0].Qtype, false, r.CheckingDisabled}
	if o := r.IsEdns0(); o != nil {
		key.do = o.Do()
	}
	if v, ok := c.seen.Get(key); ok {
		m := v.(*cached).answer(r, c.now())
		if err := w.WriteMsg(m); err != nil {
			return dns.RcodeServerFailure, fmt.Errorf("answer: %w", err)
		}
		return m.Rcode, nil
	}
	return c.next.ServeDNS(ctx, &remember{w, c, key}, r)
}

// remember keeps what passes by.
type remember struct {
	dns.ResponseWriter
	cache *cacheOf
	key   cacheKey
}

// WriteMsg implements dns.ResponseWriter.
func (r *remember) WriteMsg(m *dns.Msg) error {
	if life := lifeOf(m); life > 0 {
		r.cache.seen.Add(r.key, &cached{m.Copy(), r.cache.now(), life}, life)
	}
	return r.ResponseWriter.WriteMsg(m)
}

// lifeOf is how long an answer may be kept; 0 = not at all.
func lifeOf(m *dns.Msg) time.Duration {
	if m.Truncated || m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return 0
	}
	if len(m.Answer) > 0 && m.Rcode == dns.RcodeSuccess {
		return clamp(shortest(m.Answer), longestLife)
	}
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return clamp(time.Duration(min(soa.Minttl, soa.Hdr.Ttl))*time.Second, longestNo)
		}
	}
	return 0 // without a SOA nobody says how long the name does not exist
}

func shortest(list []dns.RR) time.Duration {
	least := longestLife
	for _, rr := range list {
		least = min(least, time.Duration(rr.Header().Ttl)*time.Second)
	}
	return least
}

func clamp(d, longest time.Duration) time.Duration { return max(shortestLife, min(d, longest)) }

// answer is what is left of the kept message, for r.
func (c *cached) answer(r *dns.Msg, now time.Time) *dns.Msg {
	m := c.msg.Copy()
	m.Id, m.RecursionDesired = r.Id, r.RecursionDesired
	m.Question = append([]dns.Question(nil), r.Question...) // as it was asked, in its case
	left := uint32(max(0, c.life-now.Sub(c.at)) / time.Second)
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if h := rr.Header(); h.Rrtype != dns.TypeOPT {
				h.Ttl = min(h.Ttl, left)
			}
		}
	}
	return m
}
