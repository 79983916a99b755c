// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	kjson "sigs.k8s.io/json"
)

const (
	// maxProviderKeys is how many keys a provider may publish. A token that names none is checked with each.
	maxProviderKeys = 100
	// maxRSABits is how long an RSA key may be: checking a signature takes time with the square of it. TLS has the same limit.
	maxRSABits = 8192
	// maxChain is how many certificates a key may bring.
	maxChain = 20
	// keysAtMost is how often keys are fetched: the library does for each token that names a key it does not know,
	// and anybody can make such tokens.
	keysAtMost = time.Second
	// notJSON is how long an answer may be that is not JSON: a token, or an error that is logged.
	notJSON = 64 << 10
	// maxKeySets is how many key sets are remembered: a provider has one, and those that keep claims for it one each.
	maxKeySets = 16
)

// providerKeys stands between identity providers and the library that believes what they answer. Answers are bounded
// already (dial.Policy.Client); this bounds what their keys cost to use, and how often they are fetched.
type providerKeys struct {
	rt  http.RoundTripper
	now func() time.Time

	mu   sync.Mutex
	sets map[string]keySet // by URL
}

// keySet is an answer with keys, or that there was none.
type keySet struct {
	at     time.Time
	header http.Header
	body   []byte
	err    error
}

func boundKeys(rt http.RoundTripper) *providerKeys {
	return &providerKeys{rt: rt, now: time.Now, sets: map[string]keySet{}}
}

// RoundTrip implements http.RoundTripper.
func (p *providerKeys) RoundTrip(r *http.Request) (*http.Response, error) {
	url := r.URL.String()
	if set, ok := p.recent(url); ok {
		if set.err != nil {
			return nil, set.err
		}
		return &http.Response{
			Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
			Header: set.header.Clone(), ContentLength: int64(len(set.body)), Body: io.NopCloser(bytes.NewReader(set.body)),
		}, nil
	}
	resp, err := p.rt.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		return resp, nil // the client follows it
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if !json.Valid(body) && len(body) > notJSON {
		return nil, fmt.Errorf("the answer of %s has %d bytes and is not JSON", r.URL.Host, len(body))
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	has, err := checkKeys(body)
	if err != nil {
		err = fmt.Errorf("the keys of %s: %w", r.URL.Host, err)
	}
	if has && resp.StatusCode == http.StatusOK {
		p.remember(url, keySet{p.now(), resp.Header, body, err})
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// WrappedRoundTripper implements client-go's interface for what looks beneath.
func (p *providerKeys) WrappedRoundTripper() http.RoundTripper { return p.rt }

func (p *providerKeys) recent(url string) (keySet, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	set, ok := p.sets[url]
	return set, ok && p.now().Sub(set.at) < keysAtMost
}

func (p *providerKeys) remember(url string, set keySet) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.sets[url]; !ok && len(p.sets) >= maxKeySets {
		clear(p.sets)
	}
	p.sets[url] = set
}

// checkKeys says whether an answer is a set of keys, and what is wrong with it. What cannot be decoded is left to the library.
func checkKeys(body []byte) (has bool, err error) {
	var set struct {
		Keys []struct {
			ID       string   `json:"kid"`
			Modulus  string   `json:"n"`
			Exponent string   `json:"e"`
			Chain    []string `json:"x5c"`
		} `json:"keys"`
	}
	// As the library: names are compared with their case, so that both read the same keys.
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &set); err != nil || set.Keys == nil {
		return false, nil //nolint:nilerr // the library says what it cannot decode
	}
	if n := len(set.Keys); n > maxProviderKeys {
		return true, fmt.Errorf("%d keys, and a provider may have %d", n, maxProviderKeys)
	}
	for i, k := range set.Keys {
		if bits := 8 * base64.RawURLEncoding.DecodedLen(len(k.Modulus)); bits > maxRSABits {
			return true, fmt.Errorf("key %d is an RSA key of %d bits, and a key may have %d", i, bits, maxRSABits)
		}
		if n := base64.RawURLEncoding.DecodedLen(len(k.Exponent)); n > 4 {
			return true, fmt.Errorf("key %d has an RSA exponent of %d bytes, and a key may have one of 4", i, n)
		}
		if n := len(k.Chain); n > maxChain {
			return true, fmt.Errorf("key %d has a chain of %d certificates, and a key may have %d", i, n, maxChain)
		}
	}
	return true, nil
}
