// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Whoever names images of a registry of his own chooses how much there is about each: all that is remembered
// is bounded together, and what others asked for, which is small, stays.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	s := New()
	look := func(key string, size int64) (asked bool) {
		_, err := remember(t.Context(), s, Registry{}, key, func() (*Found, time.Duration, error) {
			asked = true
			return &Found{size: size}, time.Hour, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return asked
	}
	look("somebody's", 1000)
	for i := range 300 {
		look(fmt.Sprint("evil ", i), evidenceLimit)
		if s.bytes > mostBytes {
			t.Fatalf("%d bytes are remembered after %d images", s.bytes, i+1)
		}
	}
	if look("somebody's", 1000) {
		t.Error("what somebody else asked for is forgotten")
	}
	for i := range 2 * mostKept {
		look(fmt.Sprint("small ", i), 1)
	}
	if len(s.memory) > mostKept {
		t.Errorf("%d answers are remembered", len(s.memory))
	}
	sum := int64(0)
	for _, m := range s.memory {
		sum += m.bytes
	}
	if sum != s.bytes {
		t.Errorf("%d bytes are counted, and %d there", s.bytes, sum)
	}
	if _, err := remember(t.Context(), s, Registry{Turn: func(context.Context) (func(), error) { return nil, context.Canceled }}, "new",
		func() (string, time.Duration, error) {
			return "", 0, nil
		}); err == nil {
		t.Error("without a turn it is looked up")
	}
}

// A name and a password go to registries that are named beside them, and to nobody else.
func TestCredentialsGoWhereTheyBelong(t *testing.T) {
	pair := map[string][]byte{"username": []byte("ann"), "password": []byte("s3cr3t")}
	config := map[string][]byte{".dockerconfigjson": []byte(`{"auths":{"registry.example.com":{"username":"ann","password":"s3cr3t"}}}`)}
	for _, c := range []struct {
		data     map[string][]byte
		registry string
		named    bool
		ok       bool
	}{
		{pair, "registry.example.com", true, true},
		{pair, "evil.example.com", false, false},
		{config, "registry.example.com", false, true},
		{config, "evil.example.com", true, false},
		{config, "registry.example.com.evil.example.com", true, false},
	} {
		auth, _, ok, err := Credentials(c.data, c.registry, c.named)
		if err != nil || ok != c.ok || (auth != nil) != c.ok {
			t.Errorf("%s, named %v: %v, %v", c.registry, c.named, ok, err)
		}
	}
}
