// SPDX-License-Identifier: Apache-2.0

package logfile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/wasmplane/wasmplane/core/run"
)

const limit = 1000

func fill(t *testing.T, f *File, lines int) {
	t.Helper()
	for i := range lines {
		if _, err := f.Write([]byte(strings.Repeat(string(rune('a'+i%26)), 29) + "\n")); err != nil {
			t.Fatal(err)
		}
	}
}

// The log never takes more than twice its limit, keeps what came last, and is nobody
// else's to read. The next process goes on with it.
func TestALogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for range 2 {
		f, err := Open(path, limit)
		if err != nil {
			t.Fatal(err)
		}
		fill(t, f, 300)
		f.Close()
		for _, p := range []string{path, path + ".1"} {
			info, err := os.Stat(p)
			if err != nil || info.Size() > limit || info.Size() == 0 || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v (%v)", p, info, err)
			}
		}
		data, err := os.ReadFile(path)
		if want := strings.Repeat(string(rune('a'+299%26)), 29) + "\n"; err != nil || !strings.HasSuffix(string(data), want) {
			t.Errorf("the log ends with %q (%v)", data, err)
		}
	}
}

func TestALogWithoutALimitKeepsAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := Open(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, f, 300)
	f.Close()
	if info, err := os.Stat(path); err != nil || info.Size() != 300*30 {
		t.Errorf("%v (%v)", info, err)
	}
}

// What several write at once stays whole lines, and none is lost while the log is turned over.
func TestLinesStayWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := Open(path, 1<<10)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 12 {
				if _, err := fmt.Fprintf(f, "writer %d line %02d of them\n", i, j); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var all []byte
	for _, p := range []string{path + ".1", path} {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	lines := strings.Split(strings.TrimSuffix(string(all), "\n"), "\n")
	seen := map[string]bool{}
	for _, l := range lines {
		var i, j int
		if n, err := fmt.Sscanf(l, "writer %d line %d of them", &i, &j); n != 2 || err != nil {
			t.Errorf("line %q", l)
		}
		seen[l] = true
	}
	if len(seen) != 4*12 {
		t.Errorf("%d lines, want %d", len(seen), 4*12)
	}
}

func TestWhereNoLogCanBe(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "none", "log"), limit); err == nil {
		t.Error("a log in a folder that is not there")
	}
}

// Another program moves the log away and sends SIGHUP: what follows is in a file of the old name.
func TestALogThatWasMovedAwayIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "log")
		f, err := Open(path, limit)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		ctx, cancel := context.WithCancel(t.Context())
		signals := make(chan os.Signal, 1)
		done := run.Go("reopening", func() error { return f.ReopenOn(ctx, signals) })
		fill(t, f, 1)
		if err := os.Rename(path, path+"-moved"); err != nil {
			t.Fatal(err)
		}
		signals <- syscall.SIGHUP
		synctest.Wait()
		fill(t, f, 2)
		for name, lines := range map[string]int64{path: 2, path + "-moved": 1} {
			if info, err := os.Stat(name); err != nil || info.Size() != lines*30 {
				t.Errorf("%s: %v (%v)", name, info, err)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
