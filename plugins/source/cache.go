// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
	"github.com/wasmplane/wasmplane/plugins/sign"
)

// cache keeps blobs under their digests, and what was known about a source: which
// manifest it led to, and which signatures that had. It is trusted with nothing:
// blobs are checked against their digests, signatures are verified each time.
type cache struct {
	dir string // "" = none
	mu  sync.Mutex
}

// known is what the cache remembers of a source.
type known struct {
	Source     string           `json:"source"`
	Manifest   string           `json:"manifest,omitempty"`
	Signatures []sign.Signature `json:"signatures,omitempty"`
	File       []byte           `json:"fileSignature,omitempty"`
	Bundle     string           `json:"bundle,omitempty"` // the digest of what a source that is followed held last
}

// cacheFull bounds the blobs, in bytes; cacheLeft is what remains then, of the newest.
const (
	cacheFull = 1 << 30
	cacheLeft = 512 << 20
)

func openCache(dir string) (*cache, error) {
	c := &cache{dir: dir}
	if dir == "" {
		return c, nil
	}
	for _, d := range []string{dir, c.blobs(), c.sources()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("make the directory of fetched modules: %w", err)
		}
		if err := os.Chmod(d, 0o700); err != nil {
			return nil, fmt.Errorf("protect the directory of fetched modules: %w", err)
		}
	}
	return c, nil
}

func (c *cache) blobs() string   { return filepath.Join(c.dir, "blobs") }
func (c *cache) sources() string { return filepath.Join(c.dir, "sources") }

func (c *cache) blobFile(digest string) string {
	return filepath.Join(c.blobs(), strings.ReplaceAll(digest, ":", "-"))
}

// blob returns what has a digest, if it is there and sound.
func (c *cache) blob(digest string, limit int64) ([]byte, bool) {
	if c.dir == "" {
		return nil, false
	}
	file := c.blobFile(digest)
	b, err := readFile(file, limit)
	if err != nil || Digest(b) != digest {
		return nil, false
	}
	now := time.Now()
	_ = os.Chtimes(file, now, now) // what is used is kept; where this fails it is fetched again one day
	return b, true
}

func (c *cache) put(b []byte) error {
	if c.dir == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := atomicfile.WriteVolatile(c.blobFile(Digest(b)), b, 0o600); err != nil {
		return fmt.Errorf("keep a fetched module: %w", err)
	}
	return c.prune()
}

func (c *cache) sourceFile(source string) string {
	return filepath.Join(c.sources(), strings.TrimPrefix(Digest([]byte(source)), "sha256:")+".json")
}

// about returns what is remembered of a source.
func (c *cache) about(source string) known {
	k := known{Source: source}
	if c.dir == "" {
		return k
	}
	b, err := readFile(c.sourceFile(source), 4<<20)
	if err != nil {
		return k
	}
	var read known
	if json.Unmarshal(b, &read) != nil || read.Source != source {
		return k
	}
	return read
}

func (c *cache) remember(k known) error {
	if c.dir == "" {
		return nil
	}
	b, err := json.Marshal(k)
	if err != nil {
		return err
	}
	if err := atomicfile.WriteVolatile(c.sourceFile(k.Source), b, 0o600); err != nil {
		return fmt.Errorf("remember a source: %w", err)
	}
	return nil
}

// prune removes the blobs that were used longest ago where there are too many.
func (c *cache) prune() error {
	list, err := os.ReadDir(c.blobs())
	if err != nil {
		return err
	}
	var infos []os.FileInfo
	var size int64
	for _, d := range list {
		if info, err := d.Info(); err == nil {
			infos, size = append(infos, info), size+info.Size()
		}
	}
	if size <= cacheFull {
		return nil
	}
	slices.SortFunc(infos, func(a, b os.FileInfo) int { return cmp.Compare(a.ModTime().UnixNano(), b.ModTime().UnixNano()) })
	for _, info := range infos {
		if size <= cacheLeft {
			break
		}
		if os.Remove(filepath.Join(c.blobs(), info.Name())) == nil {
			size -= info.Size()
		}
	}
	return nil
}
