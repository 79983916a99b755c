// SPDX-License-Identifier: Apache-2.0

// Package codes shares compiled modules between the plugins that run the same one: twenty
// constraints of one template have its code once.
package codes

import (
	"context"
	"sync"

	"github.com/tetratelabs/wazero"
)

// Set is what is compiled and in use. Its zero value is empty.
type Set struct {
	mu     sync.Mutex
	byKey  map[string]*shared
	byCode map[wazero.CompiledModule]*shared
}

type shared struct {
	key   string
	code  wazero.CompiledModule
	users int
}

// Take returns what was put under a key and is still in use, for one user more; nil where
// nothing is.
func (s *Set) Take(key string) wazero.CompiledModule {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.take(key)
}

func (s *Set) take(key string) wazero.CompiledModule {
	c := s.byKey[key]
	if c == nil {
		return nil
	}
	c.users++
	return c.code
}

// Put offers code under a key, and returns what its user is to run. Where somebody else was
// faster, that is the other's code, and what was offered is closed.
func (s *Set) Put(ctx context.Context, key string, code wazero.CompiledModule) (wazero.CompiledModule, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if first := s.take(key); first != nil {
		return first, code.Close(ctx)
	}
	if s.byKey == nil {
		s.byKey, s.byCode = map[string]*shared{}, map[wazero.CompiledModule]*shared{}
	}
	c := &shared{key: key, code: code, users: 1}
	s.byKey[key], s.byCode[code] = c, c
	return code, nil
}

// Release ends one user's use. The last one closes the code, and so does the only user of
// code that was never put into the set.
func (s *Set) Release(ctx context.Context, code wazero.CompiledModule) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.byCode[code]; c != nil {
		if c.users--; c.users > 0 {
			return nil
		}
		delete(s.byKey, c.key)
		delete(s.byCode, code)
	}
	return code.Close(ctx)
}

// Len is how many different ones are in use.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byKey)
}
