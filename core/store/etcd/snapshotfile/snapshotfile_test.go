// SPDX-License-Identifier: Apache-2.0

package snapshotfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
	"github.com/wasmplane/wasmplane/core/store/etcd/snapshotfile"
)

// A real snapshot shows what the store held when it was taken: newest values, and nothing that was deleted.
func TestWhatASnapshotHolds(t *testing.T) {
	s := start(t)
	put := func(key, value string, expect int64) int64 {
		t.Helper()
		rev, err := s.Put(t.Context(), key, []byte(value), expect, 0)
		if err != nil {
			t.Fatal(err)
		}
		return rev
	}
	put("/registry/pods/b", "second", put("/registry/pods/b", "first", 0))
	gone := put("/registry/pods/a", "gone", 0)
	if _, err := s.Delete(t.Context(), "/registry/pods/a", gone); err != nil {
		t.Fatal(err)
	}
	back := put("/registry/pods/c", "before", 0)
	if _, err := s.Delete(t.Context(), "/registry/pods/c", back); err != nil {
		t.Fatal(err)
	}
	put("/registry/pods/c", "again", 0)
	put("/registry/minions/n", "node", 0)
	put("/registry/secrets/x", "hidden", 0)
	file := saved(t, s)
	put("/registry/pods/d", "later", 0)
	var got []string
	err := snapshotfile.Contents(file, []string{"/registry/pods/", "/registry/minions/"}, func(key string, value []byte) error {
		got = append(got, key+"="+string(value))
		return nil
	})
	want := []string{"/registry/minions/n=node", "/registry/pods/b=second", "/registry/pods/c=again"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	stop := errors.New("enough")
	if err := snapshotfile.Contents(file, []string{"/"}, func(string, []byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := snapshotfile.Contents(file, nil, nil); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged file: %v", err)
	}
}

func TestDamagedSnapshotsAreRefused(t *testing.T) {
	s := start(t)
	if _, err := s.Put(t.Context(), "/registry/x", []byte("v"), 0, 0); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(saved(t, s))
	if err != nil {
		t.Fatal(err)
	}
	flipped := append([]byte{}, good...)
	flipped[len(flipped)/2] ^= 1
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"cut off":       {good[:len(good)-100], "no digest"},
		"a copied file": {good[:len(good)-32], "no digest"},
		"a bit flipped": {flipped, "does not match its digest"},
		"empty":         {nil, "no digest"},
	} {
		file := filepath.Join(t.TempDir(), "f.db")
		if err := os.WriteFile(file, c.data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := snapshotfile.Check(file); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := snapshotfile.Check("/does/not/exist"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func start(t *testing.T) *etcdclient.Store {
	t.Helper()
	server, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: filepath.Join(t.TempDir(), "a"), NoFsync: true, Timeout: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server.Store()
}

func saved(t *testing.T, s *etcdclient.Store) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "backup.db")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Backup(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return file
}
