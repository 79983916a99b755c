// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestASecondInstanceIsToldWhoHasTheDirectory(t *testing.T) {
	d, err := Open(t.TempDir(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	lock, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Lock()
	var used *InUseError
	if !errors.As(err, &used) || used.PID != os.Getpid() || !strings.Contains(err.Error(), "wasmplane stop") {
		t.Fatalf("error %v", err)
	}
	if pid, err := d.Owner(); err != nil || pid != os.Getpid() {
		t.Fatalf("owner %d, %v", pid, err)
	}
	lock.Release()
	if pid, err := d.Owner(); err != nil || pid != 0 {
		t.Fatalf("owner %d, %v", pid, err)
	}
	if err := d.AwaitRelease(t.Context().Done()); err != nil {
		t.Fatal(err)
	}
}

// A directory that others look at, as `status` and an upgrade do, can be taken at any moment, and nobody who looks is its owner.
func TestWhoLooksIsNotInTheWay(t *testing.T) {
	d, err := Open(t.TempDir(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if pid, err := d.Owner(); err != nil || pid != 0 && pid != os.Getpid() {
					t.Errorf("owner %d, %v", pid, err)
				}
			}
		})
	}
	for range 100 {
		lock, err := d.Lock()
		if err != nil {
			t.Error(err)
			break
		}
		lock.Release()
	}
	close(done)
	all.Wait()
}

func TestStateSurvives(t *testing.T) {
	d, err := Open(t.TempDir(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReadState(); err == nil || !strings.Contains(err.Error(), "wasmplane up") {
		t.Fatalf("error %v", err)
	}
	want := State{Cluster: "c", Nodes: "real", Started: time.Now().UTC().Truncate(time.Second)}
	if err := d.WriteState(want); err != nil {
		t.Fatal(err)
	}
	if got, err := d.ReadState(); err != nil || got != want {
		t.Fatalf("state %+v, %v", got, err)
	}
}

// readable tells whether a user without rights can read a file. Only root can become one.
func readable(t *testing.T, file string) bool {
	t.Helper()
	cat := exec.CommandContext(t.Context(), "cat", file)
	const nobody = 65534
	cat.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cat.Run() == nil
}

// A directory that existed may be open to every user of the machine.
func TestADirectoryThatExistedIsClosed(t *testing.T) {
	root := t.TempDir()
	if err := os.Chmod(filepath.Dir(root), 0o755); err != nil { // so that nobody gets as far as ours
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		holds   []string // directories
		mode    os.FileMode
		want    os.FileMode
		notices string
	}{
		{"fresh", nil, 0o755, 0o700, "is closed now"},
		{"disk", []string{"lost+found"}, 0o755, 0o700, "is closed now"},
		{"ours", []string{"pki", "backups"}, 0o775, 0o700, "is closed now"},
		{"closed", []string{"pki"}, 0o700, 0o700, ""},
		{"srv", []string{"www"}, 0o755, 0o755, "is not a cluster's"},
		{"tmp", nil, 0o777 | os.ModeSticky, 0o777 | os.ModeSticky, "is not a cluster's"},
	} {
		dir := filepath.Join(root, c.name)
		for _, d := range append(c.holds, ".") {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		secret := filepath.Join(dir, "secret")
		if err := errors.Join(os.WriteFile(secret, nil, 0o644), os.Chmod(dir, c.mode)); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 && c.mode != 0o700 && !readable(t, secret) {
			t.Errorf("%s: what is to be closed was not open", c.name)
		}
		notice := ""
		_, err := Open(dir, func(text string) { notice = text })
		if err != nil || !strings.Contains(notice, c.notices) || (notice == "") != (c.notices == "") {
			t.Errorf("%s: %v, notice %q", c.name, err, notice)
		}
		info, err := os.Stat(dir)
		if err != nil || info.Mode()&^os.ModeDir != c.want {
			t.Errorf("%s: mode %v, %v, want %v", c.name, info.Mode(), err, c.want)
		}
		if os.Geteuid() == 0 && c.want == 0o700 && readable(t, secret) {
			t.Errorf("%s: every user reads what is below", c.name)
		}
	}
}

// Whether there is a real node decides what an upgrade waits for, and the words are what is stored.
func TestOnlyARealNodeIsOne(t *testing.T) {
	for words, want := range map[string]string{
		RealNode("here"): "here", "no nodes": "", "3 simulated nodes": "", "starting": "", RealNode("there"): "", "": "",
	} {
		if is := (State{Nodes: words, NodeName: "here"}).RealNode(); is != want {
			t.Errorf("%q: %q, want %q", words, is, want)
		}
	}
}
