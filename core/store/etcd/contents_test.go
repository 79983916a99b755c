// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// A real snapshot shows what the store held when it was taken: newest values, and nothing that was deleted.
func TestWhatASnapshotHolds(t *testing.T) {
	s, end := startAt(t, filepath.Join(t.TempDir(), "a"))
	defer end()
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
	err := Contents(file, []string{"/registry/pods/", "/registry/minions/"}, func(key string, value []byte) error {
		got = append(got, key+"="+string(value))
		return nil
	})
	want := []string{"/registry/minions/n=node", "/registry/pods/b=second", "/registry/pods/c=again"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	stop := errors.New("enough")
	if err := Contents(file, []string{"/"}, func(string, []byte) error { return stop }); !errors.Is(err, stop) {
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
	if err := Contents(file, nil, nil); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged file: %v", err)
	}
}
