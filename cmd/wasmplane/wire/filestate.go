package wire

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
)

// fileState keeps what plugins put in a file each: hostfn.StateStore of a node.
type fileState struct {
	dir string
	mu  sync.Mutex
}

// mostState bounds a file: nothing that a grant allows comes near it.
const mostState = 64 << 20

// Sync implements hostfn.StateStore. A write replaces the whole file, so that a crash
// leaves the old one or the new one.
func (f *fileState) Sync(_ context.Context, plugin string, changes map[string][]byte) (map[string][]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	path := filepath.Join(f.dir, stateName(plugin)+".json")
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
	b, err := io.ReadAll(io.LimitReader(file, mostState+1))
	if err == nil && len(b) > mostState {
		err = fmt.Errorf("it is longer than %d bytes", mostState)
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
	next, err := os.CreateTemp(filepath.Dir(path), ".next-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(next.Name()) }() // gone already where all went well
	_, err = next.Write(b)
	if err = errors.Join(err, next.Sync(), next.Close()); err != nil {
		return err
	}
	return os.Rename(next.Name(), path)
}
