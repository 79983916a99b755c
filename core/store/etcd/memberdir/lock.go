// SPDX-License-Identifier: Apache-2.0

package memberdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Lock takes the directory for this process, until the file is closed or the process ends.
// etcd has a lock of its own, but waits for it without end and says nothing.
func Lock(dir string) (*os.File, error) {
	path := filepath.Join(dir, "wasmplane.lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the store's data directory: %w", err)
	}
	if err := tryLock(f); err != nil {
		holder, _ := os.ReadFile(path) //nolint:errcheck // only makes the message better
		_ = f.Close()
		return nil, fmt.Errorf("data directory %s is in use by another instance%s: stop it, or choose another directory", dir, pidOf(holder))
	}
	if err := probeEtcdLock(dir); err != nil {
		_ = f.Close()
		return nil, err
	}
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
		if err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("lock the store's data directory: %w", err)
		}
	}
	return f, nil
}

func pidOf(holder []byte) string {
	if pid := strings.TrimSpace(string(holder)); pid != "" {
		return " (process " + pid + ")"
	}
	return ""
}

// probeEtcdLock finds out whether an etcd of another kind has the database open.
func probeEtcdLock(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "member", "snap", "db"), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the store's database: %w", err)
	}
	defer func() { _ = f.Close() }() // releases the lock, too
	if err := tryLock(f); err != nil {
		return fmt.Errorf("the database in %s is open in another process: stop it, or choose another directory", dir)
	}
	return nil
}

func tryLock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
