// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// file has the claims that pods use.
const file = "resource_claims.json"

// format of the file.
const format = 1

// saved is the file's content.
type saved struct {
	Format int
	Claims []*prepared
}

func (n *Node) load() error {
	path := filepath.Join(n.cfg.RootDir, file)
	data, err := os.ReadFile(path) //nolint:gosec // the kubelet's own directory
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read which claims are prepared: %w", err)
	}
	claims, err := decode(path, data)
	for _, c := range claims {
		n.claims[name{c.Namespace, c.Name}] = c
	}
	return err
}

// decode reads the file's content.
func decode(path string, data []byte) ([]*prepared, error) {
	var s saved
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%s: which claims are prepared cannot be read: %w; once no pod of this node uses a claim, delete the file", path, err)
	}
	if s.Format != format {
		return nil, fmt.Errorf("%s: expected format %d, found %d: another version has written it", path, format, s.Format)
	}
	// Of a damaged file what can be taken back is.
	return slices.DeleteFunc(s.Claims, func(c *prepared) bool { return c == nil }), nil
}

// save writes the file. The latest state wins, whoever asked for it.
func (n *Node) save() error {
	n.saving.Lock()
	defer n.saving.Unlock()
	n.mu.Lock()
	s := saved{Format: format, Claims: slices.SortedFunc(maps.Values(n.claims), func(a, b *prepared) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})}
	data, err := json.Marshal(s)
	n.mu.Unlock()
	if err == nil {
		err = os.MkdirAll(n.cfg.RootDir, 0o750)
	}
	if err == nil {
		err = atomicfile.Write(filepath.Join(n.cfg.RootDir, file), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write down which claims are prepared: %w", err)
	}
	return nil
}
