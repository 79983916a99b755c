// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// use is what has been done with a volume.
type use struct {
	Attached          bool     `json:",omitempty"`
	Staged, Published []string `json:",omitempty"` // paths
	// Own is the volume behind a pod's own, whose ID is too long for a directory.
	Own string `json:",omitempty"`
}

// ledger keeps account of what callers did with volumes. It is a file, so that a
// driver that starts again goes on.
type ledger struct {
	file string

	mu   sync.Mutex
	uses map[string]use // by volume
}

func openLedger(file string) (*ledger, error) {
	l := &ledger{file: file, uses: map[string]use{}}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &l.uses)
	}
	if err != nil {
		return nil, fmt.Errorf("read what was done with volumes, %s: %w", file, err)
	}
	return l, nil
}

func (l *ledger) of(id string) use {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.uses[id]
}

// attached is how many volumes beside one are attached.
func (l *ledger) attached(beside string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := int64(0)
	for id, u := range l.uses {
		if u.Attached && id != beside {
			n++
		}
	}
	return n
}

func (l *ledger) change(id string, how func(*use)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.uses[id]
	how(&u)
	l.uses[id] = u
	if !u.Attached && u.Own == "" && len(u.Staged)+len(u.Published) == 0 {
		delete(l.uses, id)
	}
	data, err := json.Marshal(l.uses)
	if err != nil {
		return err
	}
	return atomicfile.Write(l.file, data, 0o600)
}

// with has a path once. Slices are never changed in place: others may read them.
func with(paths []string, path string) []string { return append(without(paths, path), path) }

func without(paths []string, path string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return p == path })
}
