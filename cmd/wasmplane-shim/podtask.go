// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/mount"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/workload/cell"
)

const cgroupFile = "wasm-cgroup" // in a container's bundle: the path of its cgroup; empty when that is removed

// podSandbox is what core/kubelet/containerd/wasmpods writes of a pod.
type podSandbox struct {
	Netns   string            `json:"netns"`
	Sysctls map[string]string `json:"sysctls"`
	Resolv  string            `json:"resolv"`
}

// podTask is a container with a module.
type podTask struct {
	id, bundle, root string
	streams          [3]string // FIFOs
	cgroup           podCgroup
	cmd              *exec.Cmd
	pid              int
	exited           chan struct{}

	mu       sync.Mutex
	started  bool
	gate     *os.File    // the process waits for a line on it
	kept     [3]*os.File // this side of the FIFOs: they stay open while containerd is away
	status   uint32
	exitedAt time.Time
}

// process is what the engine is told: how to isolate itself, and what to run.
type process struct {
	cell.Config
	Workload workload `json:"workload"`
	Args     []string `json:"args"`
	Env      []string `json:"env"`
}

// prepare makes what the process needs: its root, its cgroup, and what it is told.
func (t *podTask) prepare(
	ctx context.Context,
	r *taskapi.CreateTaskRequest,
	engine string,
	spec *specs.Spec,
	box podSandbox,
) (process, error) {
	module, err := blob(os.Getenv(contentVariable), spec.Annotations[wasmAnnotation])
	if err != nil {
		return process{}, err
	}
	code := compiled(ctx, engine, func(read func(*os.File) error) error {
		return withModule(ctx, r, module, spec.Process.Args, read)
	})
	c, err := t.processOf(spec, module, code, box)
	if err != nil {
		return process{}, err
	}
	if err := t.mountRoot(r); err != nil {
		return process{}, err
	}
	return c, t.makeCgroup(spec.Linux)
}

// processOf is what the configuration asks for, less what a module has no use for.
func (t *podTask) processOf(spec *specs.Spec, module, code string, box podSandbox) (process, error) {
	restrict(spec)
	w := workload{Mounts: volumes(spec.Mounts), Listen: ports(spec.Annotations[portsAnnotation])}
	if r := spec.Linux.Resources; r != nil && r.Memory != nil && r.Memory.Limit != nil {
		w.Memory = max(*r.Memory.Limit, 0)
	}
	c := process{Args: spec.Process.Args, Env: spec.Process.Env}
	c.Root, c.UID, c.GID, c.Groups = t.root, spec.Process.User.UID, spec.Process.User.GID, spec.Process.User.AdditionalGids
	c.ReadOnly = spec.Root != nil && spec.Root.Readonly
	if spec.Process.Capabilities != nil {
		c.Capabilities = spec.Process.Capabilities.Effective
	}
	for _, l := range spec.Process.Rlimits {
		c.Rlimits = append(c.Rlimits, cell.Rlimit{Type: l.Type, Soft: l.Soft, Hard: l.Hard})
	}
	for _, m := range spec.Mounts {
		if slices.Contains(w.Mounts, filepath.Clean(m.Destination)) {
			c.Mounts = append(c.Mounts, cell.Mount{
				Source: m.Source, At: filepath.Clean(m.Destination), ReadOnly: slices.Contains(m.Options, "ro"),
			})
		}
	}
	if box.Resolv != "" && !slices.Contains(w.Mounts, "/etc/resolv.conf") {
		file := filepath.Join(t.bundle, "resolv.conf")
		if err := os.WriteFile(file, []byte(box.Resolv), 0o644); err != nil {
			return c, err
		}
		if err := os.Chmod(file, 0o644); err != nil { // whatever the shim's mask
			return c, err
		}
		c.Mounts = append(c.Mounts, cell.Mount{Source: file, At: "/etc/resolv.conf", ReadOnly: true})
		w.Mounts = append(w.Mounts, "/etc/resolv.conf")
	}
	if module != "" {
		w.Module = moduleFile
		c.Mounts = append(c.Mounts, cell.Mount{Source: module, At: moduleFile, ReadOnly: true})
	}
	if code != "" {
		w.Cache = codeDirectory
		c.Mounts = append(c.Mounts, cell.Mount{Source: code, At: codeDirectory, ReadOnly: true})
	}
	c.Workload = w
	return c, nil
}

func (t *podTask) mountRoot(r *taskapi.CreateTaskRequest) error {
	if err := os.Mkdir(t.root, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	var all []mount.Mount
	for _, m := range r.Rootfs {
		all = append(all, mount.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	if err := mount.All(all, t.root); err != nil {
		return fmt.Errorf("mount the container's root: %w", err)
	}
	return nil
}

func (t *podTask) makeCgroup(l *specs.Linux) error {
	path := filepath.Clean("/" + l.CgroupsPath)
	if path == "/" {
		return errors.New("the container's configuration names no cgroup")
	}
	// First the note of it, by which it is found when this process has died.
	if err := os.WriteFile(filepath.Join(t.bundle, cgroupFile), []byte(path), 0o600); err != nil {
		return err
	}
	res := l.Resources
	if res == nil {
		res = &specs.LinuxResources{}
	}
	made, err := newCgroup(path, res)
	t.cgroup = made
	if err != nil {
		return fmt.Errorf("make the container's cgroup: %w", err)
	}
	return nil
}

// start makes the process, in the pod's network and in namespaces of its own. It waits to hear what it is (configure). track is
// called with what begins it, before anybody can hear of its end.
func (t *podTask) start(engine string, box podSandbox, track func(begin func() error) error) error {
	theirs, gate, err := os.Pipe()
	if err != nil {
		return err
	}
	defer theirs.Close()
	cmd := exec.Command(engine, "cell") //nolint:noctx // it is ended by Kill
	// Until it has isolated itself it has the node's rights: no word of the pod's comes before that, its environment neither.
	cmd.Env, cmd.Dir, cmd.ExtraFiles = []string{}, "/", []*os.File{theirs}
	streams, err := t.open()
	if err != nil {
		return errors.Join(err, gate.Close())
	}
	defer closeAll(streams[:])
	if streams[0] != nil {
		cmd.Stdin = streams[0]
	}
	if streams[1] != nil {
		cmd.Stdout = streams[1]
	}
	if streams[2] != nil {
		cmd.Stderr = streams[2]
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
	}
	if dir := t.cgroup.directory(); dir != "" {
		cgroup, err := os.Open(dir)
		if err != nil {
			return errors.Join(err, gate.Close())
		}
		defer cgroup.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(cgroup.Fd())
	}
	err = t.onThread(box, func() error {
		return track(func() error {
			if err := cmd.Start(); err != nil {
				return err
			}
			t.cmd, t.pid, t.gate = cmd, cmd.Process.Pid, gate
			return nil
		})
	})
	if err != nil {
		return errors.Join(err, gate.Close())
	}
	return nil
}

// configure sets the process' limits, and tells it what it is. It does nothing before that.
func (t *podTask) configure(c process, p *specs.Process) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := t.cgroup.begin(); err != nil {
		return fmt.Errorf("set the limits of its cgroup: %w", err)
	}
	if p.OOMScoreAdj != nil {
		// Without the right to lower it, it stays what the shim's is.
		_ = os.WriteFile("/proc/"+strconv.Itoa(t.pid)+"/oom_score_adj", []byte(strconv.Itoa(*p.OOMScoreAdj)), 0)
	}
	if _, err := t.gate.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("tell it what it is: %w", err)
	}
	return nil
}

// onThread calls begin on a thread of its own, in the container's cgroup and the pod's network, and without the capabilities that no
// engine needs: a process that it makes inherits all that. The thread ends with it.
func (t *podTask) onThread(box podSandbox, begin func() error) error {
	return <-run.Go("begin of a container", func() error {
		goruntime.LockOSThread() // and not unlocked again: Go ends the thread with its goroutine
		if unix.Gettid() != os.Getpid() {
			return t.inside(box, begin)
		}
		// But not the first thread. Another one is taken while this goroutine holds that.
		defer goruntime.UnlockOSThread()
		return t.onThread(box, begin)
	})
}

// inside takes this thread into the container's cgroup and the pod's network.
func (t *podTask) inside(box podSandbox, begin func() error) error {
	if err := t.cgroup.join(); err != nil {
		return fmt.Errorf("enter the container's cgroup: %w", err)
	}
	if box.Netns != "" {
		ns, err := os.Open(box.Netns)
		if err != nil {
			return fmt.Errorf("find the pod's network: %w", err)
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("join the pod's network: %w", err)
		}
		if err := sysctls(box.Sysctls); err != nil {
			return err
		}
	}
	if err := cell.Bound(); err != nil {
		return err
	}
	return begin()
}

// sysctls are set as in any pod: a module may listen on every port. Those of IPC concern nothing that a module has.
func sysctls(of map[string]string) error {
	for file, value := range sysctlFiles(of) {
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
			return fmt.Errorf("set a sysctl of the pod: %w", err)
		}
	}
	return nil
}

// sysctlFiles are where the sysctls of a network are written. A name has no dots any more when it is a path, and so leads nowhere else.
func sysctlFiles(of map[string]string) map[string]string {
	set := map[string]string{"/proc/sys/net/ipv4/ip_unprivileged_port_start": "0"}
	for name, value := range of {
		if strings.HasPrefix(name, "net.") {
			set[filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))] = value
		}
	}
	return set
}

// open opens the FIFOs twice: for the process, and for this one, so that a containerd which starts anew is no end of them.
func (t *podTask) open() (theirs [3]*os.File, err error) {
	for i, name := range t.streams {
		if name == "" {
			continue
		}
		if t.kept[i], err = os.OpenFile(name, os.O_RDWR, 0); err != nil {
			break
		}
		mode := os.O_WRONLY
		if i == 0 {
			mode = os.O_RDONLY
		}
		if theirs[i], err = os.OpenFile(name, mode, 0); err != nil {
			break
		}
	}
	if err != nil {
		closeAll(theirs[:])
		return theirs, fmt.Errorf("open the container's streams: %w", err)
	}
	return theirs, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

func (t *podTask) closeStdin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	closeAll(t.kept[:1])
	t.kept[0] = nil
}

func (t *podTask) closeStreams() {
	t.mu.Lock()
	defer t.mu.Unlock()
	closeAll(t.kept[:])
	t.kept = [3]*os.File{}
	if t.gate != nil {
		_ = t.gate.Close()
		t.gate = nil
	}
}

// goOn lets the process run its module.
func (t *podTask) goOn() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.started {
		return errors.New("it was started before")
	}
	t.started = true
	if t.gate == nil {
		return nil // it has ended already, and says why in its log
	}
	_, err := io.WriteString(t.gate, "go\n")
	err = errors.Join(err, t.gate.Close())
	t.gate = nil
	if errors.Is(err, unix.EPIPE) {
		return nil // as above
	}
	return err
}

func (t *podTask) hasExited() bool {
	select {
	case <-t.exited:
		return true
	default:
		return false
	}
}

// outOfMemory says whether the kernel killed for the cgroup's limit.
func (t *podTask) outOfMemory() bool {
	return t.cgroup != nil && t.cgroup.outOfMemory()
}

// remove takes away what prepare made.
func (t *podTask) remove() error {
	t.closeStreams()
	var errs []error
	if t.cgroup != nil {
		if err := t.cgroup.delete(); err != nil {
			errs = append(errs, fmt.Errorf("remove the container's cgroup: %w", err))
		} else if err := os.Truncate(filepath.Join(t.bundle, cgroupFile), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("record that the container has no cgroup: %w", err))
		}
	}
	if err := t.removeRoot(); err != nil {
		errs = append(errs, fmt.Errorf("remove the container's root: %w", err))
	}
	return errors.Join(errs...)
}

// removeRoot unmounts the root, with what is mounted in it, and removes its folder. While there is a folder, containerd and the program
// that it executes for each container look for mounts below it, in the list of all mounts of the node.
func (t *podTask) removeRoot() error {
	if err := mount.UnmountAll(t.root, unix.MNT_DETACH); err != nil {
		return err
	}
	if err := os.Remove(t.root); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
