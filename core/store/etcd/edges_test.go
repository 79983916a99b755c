// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdtest"
)

func wantError(t *testing.T, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", texts)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
}

func TestDirectoryIsClosedToOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data", "etcd")
	etcdtest.Start(t, etcd.ServerConfig{Dir: dir})
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestBadServerConfig(t *testing.T) {
	_, err := etcd.Start(t.Context(), etcd.ServerConfig{})
	wantError(t, err, "no data directory")
	_, err = etcd.Start(t.Context(), etcd.ServerConfig{Dir: t.TempDir(), Listen: []string{"localhost:1"}})
	wantError(t, err, "localhost:1", "unix:///PATH")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = etcd.Start(t.Context(), etcd.ServerConfig{Dir: file})
	wantError(t, err, "data directory", file)
}

func TestDamagedDirectory(t *testing.T) {
	dir := t.TempDir()
	s, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Store().Put(t.Context(), "/registry/a", make([]byte, 5000), 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	f, err := os.OpenFile(logs[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(bytes.Repeat([]byte{0xff}, 600), 100); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = etcd.Start(t.Context(), etcd.ServerConfig{Dir: dir, Timeout: 5 * time.Second})
	wantError(t, err, dir)
	t.Log(err)
}

// What etcd would panic about in a goroutine of its own, or wait for without end, is said, with what to do.
func TestDamageIsSaid(t *testing.T) {
	made := t.TempDir()
	s, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: made})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if _, err := s.Store().Put(t.Context(), fmt.Sprintf("/registry/%d", i), make([]byte, 5000), 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		damage func(t *testing.T, db, wal string) error
		says   string
	}{
		"both first pages": {func(t *testing.T, db, _ string) error {
			t.Helper()
			f, err := os.OpenFile(db, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			_, first := f.WriteAt([]byte{1, 2, 3, 4}, 30)
			_, second := f.WriteAt([]byte{1, 2, 3, 4}, int64(os.Getpagesize())+30)
			return errors.Join(first, second, f.Close())
		}, "its database"},
		"a database that was cut": {func(t *testing.T, db, _ string) error {
			t.Helper()
			return os.Truncate(db, 4*int64(os.Getpagesize()))
		}, "its database"},
		"no log": {func(t *testing.T, _, wal string) error {
			t.Helper()
			return os.RemoveAll(wal)
		}, "is gone"},
		"a log that has lost entries": {func(t *testing.T, _, wal string) error {
			t.Helper()
			logs, err := filepath.Glob(filepath.Join(wal, "*.wal"))
			if err != nil || len(logs) == 0 {
				t.Fatal(logs, err)
			}
			return os.Truncate(logs[0], 60_000)
		}, "its log ends at entry"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(made)); err != nil {
				t.Fatal(err)
			}
			if err := c.damage(t, filepath.Join(dir, "member", "snap", "db"), filepath.Join(dir, "member", "wal")); err != nil {
				t.Fatal(err)
			}
			_, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: dir, Timeout: 5 * time.Second})
			wantError(t, err, dir, c.says, "restore a backup")
			t.Log(err)
		})
	}
}

// A store that ran full can be read and deleted from; after compaction and a
// start it takes writes again.
func TestFullStoreRecovers(t *testing.T) {
	cfg := etcd.ServerConfig{Dir: t.TempDir(), NoFsync: true, Quota: 2 << 20}
	srv, err := etcd.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := srv.Store()
	compactor, err := store.NewCompactor(store.CompactorConfig{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	if err := compactor.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	revs := map[string]int64{}
	for i := 0; err == nil && i < 1000; i++ {
		key := fmt.Sprintf("/registry/x%d", i)
		revs[key], err = s.Put(t.Context(), key, make([]byte, 90_000), 0, 0)
	}
	if !errors.Is(err, store.ErrFull) {
		t.Fatalf("got %v, want ErrFull", err)
	}
	if _, err := s.Get(t.Context(), "/registry/x0"); err != nil {
		t.Errorf("a full store cannot be read: %v", err)
	}
	for key, rev := range revs {
		if rev > 0 {
			if _, err := s.Delete(t.Context(), key, rev); err != nil {
				t.Fatalf("a full store cannot be deleted from: %v", err)
			}
		}
	}
	for range 2 { // the first learns the revision, the second compacts
		if err := compactor.Round(t.Context()); err != nil {
			t.Fatalf("a full store cannot be compacted: %v", err)
		}
	}
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	s = etcdtest.Start(t, cfg).Store()
	if _, err := s.Put(t.Context(), "/registry/again", make([]byte, 90_000), 0, 0); err != nil {
		t.Fatalf("still full: %v", err)
	}
}

func TestStoppedStoreIsUnavailable(t *testing.T) {
	listen := etcdtest.Socket(t)
	srv, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: t.TempDir(), NoFsync: true, Listen: []string{listen}})
	if err != nil {
		t.Fatal(err)
	}
	client := dial(t, etcdclient.Config{Endpoints: []string{listen}, Timeout: 3 * time.Second})
	embedded := srv.Store()
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-srv.Done():
	default:
		t.Error("a closed server is not done")
	}
	for name, s := range map[string]store.Store{"external": client, "embedded": embedded} {
		if _, err := s.Revision(t.Context()); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s revision: got %v, want ErrUnavailable", name, err)
		}
		if _, err := s.Put(t.Context(), "/registry/a", nil, 0, 0); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s put: got %v, want ErrUnavailable", name, err)
		}
	}
	_, err = client.Get(t.Context(), "/registry/a")
	wantError(t, err, listen)
}
