// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// FileState keeps what plugins put in a file each, below Dir. Nodes use it: no node may
// write what another's plugins, or the control plane's, go by.
type FileState struct {
	Dir string

	mu sync.Mutex
}

// maxState bounds a file: nothing that a grant allows comes near it.
const maxState = 64 << 20

// Sync implements hostfn.StateStore. A write replaces the whole file, so that a crash
// leaves the old one or the new one.
func (f *FileState) Sync(_ context.Context, plugin string, changes map[string][]byte) (map[string][]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	path := filepath.Join(f.Dir, stateName(plugin)+".json")
	kept, err := readState(path)
	if err != nil {
		return nil, fmt.Errorf("keep the state of plugin %q: %w", plugin, err)
	}
	if len(changes) == 0 {
		return kept, nil
	}
	for k, v := range changes {
		if v == nil {
			delete(kept, k)
		} else {
			kept[k] = v
		}
	}
	if err := writeState(path, kept); err != nil {
		return nil, fmt.Errorf("keep the state of plugin %q: %w", plugin, err)
	}
	return kept, nil
}

func readState(path string) (map[string][]byte, error) {
	kept := map[string][]byte{}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return kept, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	b, err := io.ReadAll(io.LimitReader(file, maxState+1))
	if err == nil && len(b) > maxState {
		err = fmt.Errorf("it is longer than %d bytes", maxState)
	}
	if err == nil {
		err = json.Unmarshal(b, &kept)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w; remove it and the plugin begins anew", path, err)
	}
	if kept == nil { // the file says null
		kept = map[string][]byte{}
	}
	return kept, nil
}

func writeState(path string, kept map[string][]byte) error {
	b, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, b, 0o600)
}
