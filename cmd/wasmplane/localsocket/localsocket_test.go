// SPDX-License-Identifier: Apache-2.0

package localsocket

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// greet serves "hello" at a socket in a folder that others may enter, whose name is
// longer than a socket's may be.
func greet(t *testing.T) string {
	t.Helper()
	base, err := os.MkdirTemp("", "socket") //nolint:usetesting // a test's own folder is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	folder := filepath.Join(base, strings.Repeat("long", 40))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "api.sock")
	if err := os.WriteFile(path, []byte("left behind"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(t.Context(), path, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello from "+c.RemoteAddr().String())
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		<-done
		if _, err := os.Stat(path); err == nil {
			t.Error("the socket is left behind")
		}
	})
	return path
}

func TestTheOperatorGetsIn(t *testing.T) {
	path := greet(t)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || info.Mode().Type() != os.ModeSocket {
		t.Fatalf("mode %v (%v), want a socket of 0600", info.Mode(), err)
	}
	c, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.ReadAll(c); err != nil || string(got) != "hello from 127.0.0.1:0" {
		t.Errorf("%q (%v)", got, err)
	}
}

// Whoever is neither root nor the server's user is cut off, even where the mode of
// the socket would let them in.
func TestOtherUsersAreCutOff(t *testing.T) {
	if path := os.Getenv("LOCALSOCKET_TEST"); path != "" {
		var d net.Dialer
		if err := os.Chdir(filepath.Dir(path)); err != nil { //nolint:usetesting // this user cannot come back to the folder before
			t.Fatal(err)
		}
		c, err := d.DialContext(context.Background(), "unix", filepath.Base(path))
		if err != nil {
			t.Fatalf("connect: %v", err)
		}
		got, _ := io.ReadAll(c)
		t.Logf("got %q", got)
		return
	}
	if os.Geteuid() != 0 {
		t.Log("only root can become another user")
		return
	}
	path := greet(t)
	if err := os.Chmod(path, 0o666); err != nil { //nolint:gosec // the mistake that is to be without effect
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(filepath.Dir(filepath.Dir(path)), "other")
	if err := os.WriteFile(copied, self, 0o755); err != nil { //nolint:gosec // another user runs it
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), copied, "-test.run=^TestOtherUsersAreCutOff$", "-test.v")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "LOCALSOCKET_TEST="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), `got ""`) {
		t.Errorf("another user: %v\n%s", err, out)
	}
}
