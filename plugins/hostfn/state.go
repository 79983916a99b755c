// SPDX-License-Identifier: Apache-2.0

package hostfn

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
)

// StateStore keeps what plugins put. Sync carries out changes (nil deletes a key)
// and returns everything that is kept for the plugin then.
type StateStore interface {
	Sync(ctx context.Context, plugin string, changes map[string][]byte) (map[string][]byte, error)
}

// How long a change may wait to be written, and after which time what other
// processes wrote is read again.
const (
	stateWriteEvery = time.Second
	stateReadEvery  = 10 * time.Second
	stateTimeout    = 10 * time.Second
)

// longestKey bounds a key; it is one of a ConfigMap's.
const longestKey = 253

// states are the key-value stores of this process's plugins. What plugins put is
// visible at once in this process and written behind their backs: a decision must not
// wait for a disk. A key that two processes write within a second has the last writer's value.
type states struct {
	mu   sync.Mutex
	made map[string]*state
}

type state struct {
	mu      sync.Mutex
	loaded  bool
	read    time.Time
	values  map[string][]byte
	pending map[string][]byte // to be written; nil = to be deleted
}

func (s *states) of(plugin string) *state {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made == nil {
		s.made = map[string]*state{}
	}
	if s.made[plugin] == nil {
		s.made[plugin] = &state{values: map[string][]byte{}, pending: map[string][]byte{}}
	}
	return s.made[plugin]
}

// run writes until ctx ends, and once more then.
func (s *states) run(ctx context.Context, store StateStore, log *slog.Logger) error {
	if store == nil {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(stateWriteEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stateWriteEvery)
			defer cancel()
			s.flush(last, store, log)
			return nil
		case <-tick.C:
			s.flush(ctx, store, log)
		}
	}
}

func (s *states) flush(ctx context.Context, store StateStore, log *slog.Logger) {
	s.mu.Lock()
	var names []string
	for name := range s.made {
		names = append(names, name)
	}
	s.mu.Unlock()
	for _, name := range names {
		if err := s.of(name).sync(ctx, store, name); err != nil {
			log.WarnContext(ctx, "what a plugin keeps could not be written; it is tried again", "plugin", name, "error", err)
		}
	}
}

// sync writes what is pending, and reads again what is old.
func (s *state) sync(ctx context.Context, store StateStore, plugin string) error {
	s.mu.Lock()
	changes := s.pending
	if len(changes) == 0 && (!s.loaded || time.Since(s.read) < stateReadEvery) {
		s.mu.Unlock()
		return nil
	}
	s.pending = map[string][]byte{}
	s.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	values, err := store.Sync(bounded, plugin, changes)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		for k, v := range changes { // what came meanwhile is newer
			if _, newer := s.pending[k]; !newer {
				s.pending[k] = v
			}
		}
		return err
	}
	s.take(values)
	return nil
}

// take makes values the state, with what has not been written yet on top.
func (s *state) take(values map[string][]byte) {
	s.loaded, s.read = true, time.Now()
	s.values = map[string][]byte{}
	for k, v := range values {
		s.values[k] = v
	}
	for k, v := range s.pending {
		if v == nil {
			delete(s.values, k)
		} else {
			s.values[k] = v
		}
	}
}

// state is the caller's store, loaded.
func (c *Caller) state(ctx context.Context) (*state, error) {
	if c.e.Grants.State.Size == 0 {
		return nil, c.refused("keep state", Grant(StateGet))
	}
	store := c.f.backend.State
	if store == nil {
		return nil, notHere("store for what plugins keep")
	}
	name := c.stateName()
	s := c.f.states.of(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loaded {
		return s, nil
	}
	values, err := store.Sync(ctx, name, nil)
	if err != nil {
		return nil, fmt.Errorf("read what the plugin keeps: %w", err)
	}
	s.take(values)
	return s, nil
}

// stateName keeps the stores of tenants' plugins apart: no plugin's name has an underscore.
func (c *Caller) stateName() string {
	if c.e.Namespace == "" {
		return c.e.Name
	}
	return c.e.Namespace + "_" + strings.TrimPrefix(c.e.Name, c.e.Namespace+":")
}

type stateKey struct {
	Key string `json:"key"`
}

type stateValue struct {
	Value []byte `json:"value"`
}

func (c *Caller) stateGet(ctx context.Context, q stateKey) (stateValue, error) {
	v, _, err := c.GetState(ctx, q.Key)
	return stateValue{v}, err
}

// GetState reads a key.
func (c *Caller) GetState(ctx context.Context, key string) (value []byte, ok bool, err error) {
	s, err := c.state(ctx)
	if err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok = s.values[key]
	return value, ok, nil
}

func (c *Caller) statePut(ctx context.Context, input []byte) ([]byte, error) {
	var q struct {
		Key   string  `json:"key"`
		Value *[]byte `json:"value"`
	}
	if err := decode(input, &q); err != nil {
		return nil, err
	}
	if q.Value == nil {
		return nil, c.PutState(ctx, q.Key, nil)
	}
	return nil, c.PutState(ctx, q.Key, append([]byte{}, *q.Value...))
}

// PutState writes a key; nil deletes it. The value is the store's from then on.
// In a dry run nothing is written.
func (c *Caller) PutState(ctx context.Context, key string, value []byte) error {
	if !validKey(key) {
		return fmt.Errorf("key: expected 1 to %d letters, digits, dots, dashes and underscores, found %q", longestKey, clip(key, longestKey))
	}
	s, err := c.state(ctx)
	if err != nil {
		return err
	}
	if host.DryRun(ctx) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, had := s.values[key]
	if had && value != nil && bytes.Equal(old, value) || !had && value == nil {
		return nil
	}
	if value == nil {
		delete(s.values, key)
		s.pending[key] = nil
		return nil
	}
	size := len(key) + len(value)
	for k, v := range s.values {
		if k != key {
			size += len(k) + len(v)
		}
	}
	if limit := int(c.e.Grants.State.Size); size > limit {
		return fmt.Errorf("the plugin would keep %d bytes: grants.state.size allows %d", size, limit)
	}
	s.values[key], s.pending[key] = value, value
	return nil
}

func validKey(key string) bool {
	if key == "" || len(key) > longestKey || key == "." || strings.HasPrefix(key, "..") {
		return false
	}
	return !strings.ContainsFunc(key, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.')
	})
}

type statePrefix struct {
	Prefix string `json:"prefix"`
}

type stateKeys struct {
	Keys []string `json:"keys"`
}

func (c *Caller) stateList(ctx context.Context, q statePrefix) (stateKeys, error) {
	s, err := c.state(ctx)
	if err != nil {
		return stateKeys{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := []string{}
	for k := range s.values {
		if strings.HasPrefix(k, q.Prefix) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return stateKeys{keys}, nil
}
