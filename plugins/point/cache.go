// SPDX-License-Identifier: Apache-2.0

package point

import "sync"

// Cache remembers what pure hooks answered, keyed by what they read: the version
// of the plugin and the projected input. It is bounded, and safe for concurrent use.
// A nil Cache remembers nothing.
type Cache struct {
	mu      sync.Mutex
	version *Version // whose answers these are
	recent  map[string][]byte
	older   map[string][]byte // what recent was before it was full
}

// Bounds of a cache: answers in each of its two generations, and bytes of a question and of an answer.
const (
	cacheEntries  = 4096
	cacheQuestion = 2048
	cacheAnswer   = 1024
)

// NewCache makes an empty cache.
func NewCache() *Cache { return &Cache{} }

// find fills in the answer to a question that was asked before.
func (k *Cache) find(c *Call, question []byte) bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.version != c.Version {
		return false
	}
	answer, ok := k.recent[string(question)]
	if !ok {
		if answer, ok = k.older[string(question)]; !ok {
			return false
		}
		k.put(question, answer) // it is in use
	}
	c.Answer, c.Remembered = answer, true
	return true
}

// keep remembers an answer. It forgets those of another version.
func (k *Cache) keep(c *Call, question []byte) {
	if k == nil || len(question) > cacheQuestion || len(c.Answer) > cacheAnswer {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.version != c.Version {
		k.version, k.recent, k.older = c.Version, nil, nil
	}
	k.put(question, c.Answer)
}

func (k *Cache) put(question, answer []byte) {
	if len(k.recent) >= cacheEntries {
		k.recent, k.older = nil, k.recent
	}
	if k.recent == nil {
		k.recent = make(map[string][]byte, 64)
	}
	k.recent[string(question)] = answer
}
