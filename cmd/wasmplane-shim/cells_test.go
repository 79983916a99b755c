// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// Modules of these tests. They print "ready", and do what they do.
const (
	prelude = `
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 1024) "ready\n")
  (func $ready
    (i32.store (i32.const 0) (i32.const 1024))
    (i32.store (i32.const 4) (i32.const 6))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))))`
	exiting = `(module ` + prelude + `
  (func (export "_start") (call $ready) (call $exit (i32.const 7))))`
	waiting = `(module ` + prelude + `
  (func (export "_start")
    (call $ready)
    (i32.store (i32.const 16) (i32.const 1))
    (i64.store (i32.const 24) (i64.const 3600000000000))
    (loop $forever
      (drop (call $poll (i32.const 0) (i32.const 128) (i32.const 1) (i32.const 512)))
      (br $forever))))`
	computing = `(module ` + prelude + `
  (func (export "_start") (call $ready) (loop $forever (br $forever))))`
	growing = `(module ` + prelude + `
  (func (export "_start") (local $page i32)
    (call $ready)
    (loop $forever
      (local.set $page (memory.grow (i32.const 16)))
      (if (i32.ne (local.get $page) (i32.const -1)) (then
        (memory.fill (i32.mul (local.get $page) (i32.const 65536)) (i32.const 1) (i32.const 1048576))))
      (br $forever))))`
)

// builtEngine is as the release has it.
func builtEngine(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), engineName)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", file, "../wasmplane-wasm")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the engine: %v: %s", err, out)
	}
	return file
}

// cells is a shim whose containers run.
type cells struct {
	*podTasks
	content, netns, cgroup string
	n                      int
}

func newCells(t *testing.T) *cells {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes namespaces and cgroups")
	}
	file := builtEngine(t)
	c := &cells{
		podTasks: pods(t),
		content:  t.TempDir(),
		netns:    network(t),
		cgroup:   fmt.Sprintf("/wp-test-%d-%d", os.Getpid(), time.Now().UnixNano()),
	}
	c.engine = file
	t.Setenv(contentVariable, c.content)
	// Another user's process finds its way to its root.
	for dir := c.bundle; len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(c.bundle, sandboxFolder, strings.Repeat("a", 64)), podSandbox{Netns: c.netns, Resolv: "nameserver 10.0.0.10\n"})
	children := make(chan os.Signal, 32)
	signal.Notify(children, unix.SIGCHLD)
	exits := reaper.Default.Subscribe()
	ended := make(chan struct{}, 2)
	go func() {
		for range children {
			_ = reaper.Reap()
		}
		ended <- struct{}{}
	}()
	go func() { c.reap(t.Context(), exits); ended <- struct{}{} }()
	t.Cleanup(func() {
		signal.Stop(children)
		close(children)
		<-ended
		reaper.Default.Unsubscribe(exits)
		<-ended
		for _, dir := range cgroupsOf(t, c.cgroup) {
			if err := os.Remove(dir); err != nil {
				t.Errorf("the parent of the containers' cgroups: %v", err)
			}
		}
	})
	return c
}

// cgroupsOf are a cgroup's directories, whatever the machine's version.
func cgroupsOf(t *testing.T, path string) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found, err := filepath.Glob(pattern + path)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, found...)
	}
	return out
}

// network is a namespace with nothing in it.
func network(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "netns")
	write(t, file, []byte(nil))
	made := make(chan error)
	go func() {
		goruntime.LockOSThread() // and it ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount("/proc/thread-self/ns/net", file, "", unix.MS_BIND, "")
		}
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(file, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return file
}

// create is a container with a module, and answers its output as it comes.
func (c *cells) create(t *testing.T, module string, change func(*specs.Spec)) (string, *os.File) {
	t.Helper()
	code, err := wat.Assemble(module)
	if err != nil {
		t.Fatal(err)
	}
	name := digest.FromBytes(code)
	write(t, filepath.Join(c.content, "blobs/sha256", name.Encoded()), code)
	image := blobs(t, c.content, map[string]any{"os": "wasip1", "architecture": "wasm", "layerDigests": []string{name.String()}})[0]
	c.n++
	id := "c" + strconv.Itoa(c.n)
	dir := filepath.Join(c.bundle, id)
	limit := int64(128 << 20)
	spec := specs.Spec{
		Annotations: map[string]string{wasmAnnotation: image, sandboxAnnotation: strings.Repeat("a", 64)},
		Root:        &specs.Root{Readonly: true},
		Process: &specs.Process{
			Args: []string{"module.wasm"}, Env: []string{"GODEBUG=inittrace=1"},
			Capabilities: &specs.LinuxCapabilities{Effective: []string{"CAP_SYS_ADMIN"}, Bounding: []string{"CAP_SYS_ADMIN"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: filepath.Join(c.cgroup, id),
			Resources:   &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}},
		},
	}
	if change != nil {
		change(&spec)
	}
	write(t, filepath.Join(dir, "config.json"), spec)
	files := t.TempDir()
	out := filepath.Join(dir, "stdout")
	if err := errors.Join(unix.Mkfifo(out, 0o600), os.Chmod(dir, 0o711), os.Chmod(files, 0o755)); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(out, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() })
	_, err = c.Create(t.Context(), &taskapi.CreateTaskRequest{
		ID: id, Bundle: dir, Stdout: out, Stderr: out,
		Rootfs: []*types.Mount{{Type: "bind", Source: files, Options: []string{"rbind", "rw"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after a failure
		if task, err := c.task(id); err == nil {
			_ = unix.Kill(task.pid, unix.SIGKILL)
			<-task.exited
			_, _ = c.Delete(t.Context(), &taskapi.DeleteRequest{ID: id})
		}
	})
	return id, reader
}

func (c *cells) begin(t *testing.T, id string, out *os.File) {
	t.Helper()
	if _, err := c.podTasks.Start(t.Context(), &taskapi.StartRequest{ID: id}); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 6)
	if err := out.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, err := io.ReadFull(out, line); err != nil || string(line) != "ready\n" {
		t.Fatalf("it said %q: %v", line[:n], err)
	}
}

// finish answers how it ended, once it has ended, and nothing of it is there.
func (c *cells) finish(t *testing.T, id string) uint32 {
	t.Helper()
	end, err := c.podTasks.Wait(t.Context(), &taskapi.WaitRequest{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(t.Context(), &taskapi.DeleteRequest{ID: id}); err != nil {
		t.Fatal(err)
	}
	c.nothingOf(t, id)
	return end.ExitStatus
}

func (c *cells) nothingOf(t *testing.T, id string) {
	t.Helper()
	if left := cgroupsOf(t, filepath.Join(c.cgroup, id)); len(left) > 0 {
		t.Errorf("its cgroups are left: %v", left)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), filepath.Join(c.bundle, id)) {
		t.Error("its mounts are left")
	}
	// Or else containerd, and the program that it executes, look for mounts in the list of all.
	if _, err := os.Lstat(filepath.Join(c.bundle, id, "rootfs")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its root's folder is left: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(c.bundle, id, cgroupFile)); err != nil || len(text) > 0 {
		t.Errorf("its cgroup is on record: %q (%v)", text, err)
	}
}

// TestAModuleRunsInACell and reaches nothing of the machine: as the kernel sees the process.
func TestAModuleRunsInACell(t *testing.T) {
	c := newCells(t)
	for _, uid := range []uint32{0, 1000} {
		id, out := c.create(t, waiting, func(s *specs.Spec) { s.Process.User.UID, s.Process.User.GID = uid, uid })
		c.begin(t, id, out)
		task, err := c.task(id)
		if err != nil {
			t.Fatal(err)
		}
		proc := fmt.Sprintf("/proc/%d", task.pid)
		text, err := os.ReadFile(proc + "/status")
		if err != nil {
			t.Fatal(err)
		}
		status := strings.Join(strings.Fields(string(text)), " ")
		none := "0000000000000000"
		for _, want := range []string{
			"CapInh: " + none, "CapPrm: " + none, "CapEff: " + none, "CapBnd: " + none, "CapAmb: " + none,
			"NoNewPrivs: 1", "Seccomp: 2", fmt.Sprintf("Uid: %d %d %d %d", uid, uid, uid, uid), fmt.Sprintf("Gid: %d %d %d %d", uid, uid, uid, uid),
		} {
			if !strings.Contains(status, want) {
				t.Errorf("its status lacks %q: %s", want, status)
			}
		}
		for _, ns := range []string{"net", "mnt", "pid", "ipc", "uts", "cgroup"} {
			theirs, err := os.Readlink(proc + "/ns/" + ns)
			ours, ourErr := os.Readlink("/proc/thread-self/ns/" + ns) // a test's thread may have made the pod's
			if err = errors.Join(err, ourErr); err != nil || theirs == ours {
				t.Errorf("it shares the namespace %s: %v", ns, err)
			}
		}
		var pod, its unix.Stat_t
		if err := errors.Join(unix.Stat(c.netns, &pod), unix.Stat(proc+"/ns/net", &its)); err != nil || pod.Ino != its.Ino {
			t.Errorf("its network is not the pod's: %v", err)
		}
		names, err := os.ReadDir(proc + "/root")
		var seen []string
		for _, n := range names {
			seen = append(seen, n.Name())
		}
		if err != nil || !slices.Equal(seen, []string{".wasmplane", "etc"}) {
			t.Errorf("it sees %q: %v", seen, err)
		}
		groups, err := os.ReadFile(proc + "/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(groups)) {
			if !strings.HasSuffix(strings.TrimSpace(line), ":"+filepath.Join(c.cgroup, id)) && !strings.Contains(line, ":misc:") {
				t.Errorf("it is in the cgroup %s", line)
			}
		}
		if _, err := c.podTasks.Stats(t.Context(), &taskapi.StatsRequest{ID: id}); err != nil {
			t.Error(err)
		}
		if p, err := c.podTasks.Pids(t.Context(), &taskapi.PidsRequest{ID: id}); err != nil || len(p.Processes) != 1 {
			t.Errorf("its processes: %v %v", p, err)
		}
		if _, err := c.Kill(t.Context(), &taskapi.KillRequest{ID: id, Signal: uint32(unix.SIGTERM)}); err != nil {
			t.Fatal(err)
		}
		if code := c.finish(t, id); code != 128+uint32(unix.SIGTERM) {
			t.Errorf("after the signal to end it ended with %d", code)
		}
	}
}

// TestContainersEndAsTheirModulesDo, and one that takes too much memory ends alone.
func TestContainersEndAsTheirModulesDo(t *testing.T) {
	c := newCells(t)
	beside, out := c.create(t, waiting, nil)
	c.begin(t, beside, out)
	id, out := c.create(t, exiting, nil)
	c.begin(t, id, out)
	if code := c.finish(t, id); code != 7 {
		t.Errorf("it ended with %d, want 7", code)
	}
	id, out = c.create(t, computing, nil)
	c.begin(t, id, out)
	if _, err := c.Kill(t.Context(), &taskapi.KillRequest{ID: id, Signal: uint32(unix.SIGTERM)}); err != nil {
		t.Fatal(err)
	}
	if code := c.finish(t, id); code != 128+uint32(unix.SIGTERM) {
		t.Errorf("it ended with %d", code)
	}
	id, out = c.create(t, growing, nil)
	task, err := c.task(id)
	if err != nil {
		t.Fatal(err)
	}
	c.begin(t, id, out)
	<-task.exited
	if !task.outOfMemory() {
		t.Error("the kernel did not end it for its memory")
	}
	if code := c.finish(t, id); code != 128+uint32(unix.SIGKILL) {
		t.Errorf("it ended with %d", code)
	}
	if s, err := c.State(t.Context(), &taskapi.StateRequest{ID: beside}); err != nil || s.Status.String() != "RUNNING" {
		t.Errorf("the one beside it: %v %v", s, err)
	}
}

// TestAContainerThatIsNotStartedGoes with all that was made for it; its module never ran.
func TestAContainerThatIsNotStartedGoes(t *testing.T) {
	c := newCells(t)
	id, out := c.create(t, exiting, nil)
	if _, err := c.Kill(t.Context(), &taskapi.KillRequest{ID: id, Signal: uint32(unix.SIGKILL)}); err != nil {
		t.Fatal(err)
	}
	c.finish(t, id)
	if err := out.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if said, err := io.ReadAll(out); !errors.Is(err, os.ErrDeadlineExceeded) || bytes.Contains(said, []byte("ready")) {
		t.Errorf("it said %q: %v", said, err)
	}
	// containerd calls the shim's program for a container that ended in order, too.
	t.Chdir(filepath.Join(c.bundle, id))
	if _, err := (podManager{}).Stop(namespaces.WithNamespace(t.Context(), "k8s.io"), id); err != nil {
		t.Error(err)
	}
}

// TestWhatADeadShimLeftIsRemoved: containerd calls the shim's program for each of its containers then.
func TestWhatADeadShimLeftIsRemoved(t *testing.T) {
	c := newCells(t)
	id, out := c.create(t, waiting, nil)
	c.begin(t, id, out)
	task, err := c.task(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(c.bundle, id))
	end, err := podManager{}.Stop(namespaces.WithNamespace(t.Context(), "k8s.io"), id)
	if err != nil || end.ExitStatus != 128+int(unix.SIGKILL) {
		t.Errorf("%+v %v", end, err)
	}
	<-task.exited
	c.nothingOf(t, id)
}
