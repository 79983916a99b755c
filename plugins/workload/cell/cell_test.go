// SPDX-License-Identifier: Apache-2.0

package cell

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/run"
)

const variable = "WASMPLANE_TEST_CELL"

// TestMain is also the process in a cell, which says what it can do.
func TestMain(m *testing.M) {
	text := os.Getenv(variable)
	if text == "" {
		code := m.Run()
		if file, err := program(); err == nil {
			_ = os.RemoveAll(filepath.Dir(file))
		}
		os.Exit(code)
	}
	var c Config
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		fmt.Println("config:", err)
		os.Exit(1)
	}
	if err := Enter(c); err != nil {
		fmt.Println("enter:", err)
		os.Exit(1)
	}
	inside()
	os.Exit(0)
}

// program is this test as the engine is built: without cgo, with which Go cannot change what all threads are.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "wp-cell-")
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "cell.test")
	cmd := exec.Command("go", "test", "-c", "-o", file, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return file, fmt.Errorf("build the test without cgo: %w: %s", err, out)
	}
	return file, nil
})

// inside prints a line for each thing that a process tries.
func inside() {
	say := func(what string, err error) {
		answer := "yes"
		if err != nil {
			answer = "no"
		}
		fmt.Println(what, answer)
	}
	fmt.Println("user", os.Getuid(), os.Getgid())
	_, err := os.Stat("/proc/self")
	say("proc", err)
	text, err := os.ReadFile("/data/file")
	fmt.Println("data", string(text), err)
	say("write", os.WriteFile("/data/other", nil, 0o644))
	say("write read-only", os.WriteFile("/settings/other", nil, 0o644))
	say("write root", os.WriteFile("/other", nil, 0o644))
	_, err = os.ReadFile("/link/passwd")
	say("leave by a link", err)
	say("mount", unix.Mount("tmpfs", "/data", "tmpfs", 0, ""))
	say("execute", exec.Command("/data/program").Run()) // it must fail at once
	_, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, 0)
	say("netlink", err)
	_, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	say("packets", err)
	_, _, errno := unix.Syscall(unix.SYS_PTRACE, 0, 0, 0)
	say("trace", errnoOrNil(errno))
	_, _, errno = unix.Syscall(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0)
	say("user namespace", errnoOrNil(errno))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	say("listen", err)
	if err == nil {
		_ = l.Close()
	}
	if in, out, err := os.Pipe(); err == nil {
		_, _ = out.WriteString("hello")
		n, err := unix.IoctlGetInt(int(in.Fd()), unix.TIOCINQ)
		fmt.Println("to read", n, err)
		_, err = unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
		fmt.Println("terminal", errors.Is(err, unix.EPERM))
	}
	done := make(chan struct{})
	for range 8 { // threads are made after the filter
		go func() { time.Sleep(time.Millisecond); done <- struct{}{} }()
	}
	for range 8 {
		<-done
	}
	fmt.Println("threads work")
}

func errnoOrNil(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// enter runs the test's program in a cell and answers what it said.
func enter(t *testing.T, c Config) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes namespaces")
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	program, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = []string{variable + "=" + string(text)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return out.String()
}

// root is a directory that can be a cell's root: a mount point.
func root(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if os.Getuid() != 0 {
		return dir
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// open makes a directory and all above it, up to the test's own, one that every user may enter.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestACellHasWhatItIsGiven, and nothing else: as another user, and as root.
func TestACellHasWhatItIsGiven(t *testing.T) {
	for _, uid := range []uint32{0, 1000} {
		r := root(t)
		if err := os.Symlink("/etc", filepath.Join(r, "link")); err != nil {
			t.Fatal(err)
		}
		got := enter(t, Config{
			Root: r, ReadOnly: true, UID: uid, GID: uid, Capabilities: []string{"CAP_DAC_OVERRIDE"},
			Mounts: []Mount{
				{Source: folder(t, map[string]string{"file": "hello", "program": "#!/bin/sh\n"}), At: "/data"},
				{Source: folder(t, nil), At: "/settings", ReadOnly: true},
				{Source: filepath.Join(folder(t, map[string]string{"log": ""}), "log"), At: "/dev/termination-log"},
			},
			Rlimits: []Rlimit{{"RLIMIT_NOFILE", 512, 512}},
		})
		want := fmt.Sprintf(`user %d %d
proc no
data hello <nil>
write yes
write read-only no
write root no
leave by a link no
mount no
execute no
netlink no
packets no
trace no
user namespace no
listen yes
to read 5 <nil>
terminal true
threads work
`, uid, uid)
		if got != want {
			t.Errorf("as %d it said\n%s, want\n%s", uid, got, want)
		}
	}
}

// TestALinkInAnImageLeadsNowhere: a volume that is mounted at what an image made a link is in the cell, and not where the link points to on
// the machine.
func TestALinkInAnImageLeadsNowhere(t *testing.T) {
	r, outside := root(t), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(r, "data")); err != nil {
		t.Fatal(err)
	}
	got := enter(t, Config{Root: r, Mounts: []Mount{{Source: folder(t, map[string]string{"file": "hello"}), At: "/data"}}})
	if strings.Contains(got, "data hello") {
		t.Errorf("a volume was mounted through a link to where nothing is:\n%s", got)
	}
	if found, err := os.ReadDir(outside); err != nil || len(found) > 0 {
		t.Errorf("outside of the cell: %v %v", found, err)
	}
}

// TestBadCells are refused, and say why.
func TestBadCells(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Root: "/nowhere"}, "change the root directory"},
		{Config{Root: t.TempDir(), Mounts: []Mount{{Source: "/nowhere", At: "/data"}}}, "take /nowhere, for /data"},
		{Config{Root: root(t), Rlimits: []Rlimit{{Type: "RLIMIT_LUCK"}}}, `the limit "RLIMIT_LUCK" is not known`},
		{Config{Root: root(t), Capabilities: []string{"CAP_SYS_ADMIN"}}, `"CAP_SYS_ADMIN" is of no use`},
	} {
		if got := enter(t, c.config); !strings.Contains(got, c.want) {
			t.Errorf("%+v: it said %q, want %q", c.config, got, c.want)
		}
	}
}

// TestBound: a thread that begins a cell's process keeps what Enter needs and a cell may have, and this process loses nothing.
func TestBound(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: others have no capabilities to give up")
	}
	bounding := func() string {
		text, err := os.ReadFile("/proc/thread-self/status")
		if err != nil {
			t.Error(err)
		}
		_, after, _ := strings.Cut(string(text), "CapBnd:")
		line, _, _ := strings.Cut(after, "\n")
		return strings.TrimSpace(line)
	}
	before := bounding()
	had, err := strconv.ParseUint(before, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	want := uint64(0)
	for _, bit := range []int{
		unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_ADMIN,
		unix.CAP_SYS_RESOURCE,
	} {
		want |= 1 << bit & had
	}
	got := ""
	err = <-run.Go("a thread that is bound", func() error {
		runtime.LockOSThread() // it ends with the goroutine
		err := Bound()
		got = bounding()
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if got != fmt.Sprintf("%016x", want) {
		t.Errorf("the thread can have %s, want %016x of %s", got, want, before)
	}
	if now := bounding(); now != before {
		t.Errorf("another thread can have %s, and had %s", now, before)
	}
}
