// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const (
	cgroupTop = "/sys/fs/cgroup"
	// cgroupBeside is where a machine with cgroup v1 has v2 as well, without controllers.
	cgroupBeside = "/sys/fs/cgroup/unified"
)

// podCgroup is the cgroup of a container, in version 1 or 2.
type podCgroup interface {
	// directory is what a process is started in, in version 2; empty where the machine has nothing of that.
	directory() string
	// join moves this thread, so that a process which it makes is in there too (version 1).
	join() error
	// begin sets the first limits, if they were not to hold for that thread.
	begin() error
	pids() ([]int, error)
	stat() (any, error)
	limit(res *specs.LinuxResources) error
	// outOfMemory says whether the kernel killed for its limit.
	outOfMemory() bool
	// delete fails while processes are in it; one that is not there is no error.
	delete() error
}

func newCgroup(path string, res *specs.LinuxResources) (podCgroup, error) {
	limits := &specs.LinuxResources{
		CPU:            res.CPU,
		Memory:         res.Memory,
		Pids:           res.Pids,
		BlockIO:        res.BlockIO,
		HugepageLimits: res.HugepageLimits,
		Unified:        res.Unified,
	}
	if cgroups.Mode() == cgroups.Unified {
		made, err := cgroup2.NewManager(cgroupTop, path, cgroup2.ToResources(limits))
		if err != nil {
			return nil, err
		}
		c := unifiedCgroup{path, made}
		return c, c.unified(limits)
	}
	if len(limits.Unified) > 0 {
		return nil, errors.New("limits with the kernel's names for cgroup v2 need cgroup v2, which this node does not use")
	}
	// There is no device in a cell. Should one come to be there, it cannot be opened.
	limits.Devices = []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	made, err := cgroup1.New(cgroup1.StaticPath(path), &specs.LinuxResources{HugepageLimits: limits.HugepageLimits},
		cgroup1.WithHierarchy(controllers))
	if err != nil {
		return nil, err
	}
	c := legacyCgroup{path, made, limits}
	if cgroups.Mode() == cgroups.Hybrid {
		if err := os.MkdirAll(filepath.Join(cgroupBeside, path), 0o755); err != nil {
			return c, err
		}
	}
	return c, nil
}

// loadCgroup finds one that was made by another process, or what is left of it. The answer is nil if nothing is.
func loadCgroup(path string) (podCgroup, error) {
	if cgroups.Mode() == cgroups.Unified {
		found, err := cgroup2.Load(path)
		if err != nil {
			return nil, err
		}
		return unifiedCgroup{path, found}, nil
	}
	found, err := cgroup1.Load(cgroup1.StaticPath(path), cgroup1.WithHierarchy(controllers))
	if errors.Is(err, cgroup1.ErrCgroupDeleted) {
		return nil, nil //nolint:nilnil // as its comment says
	}
	if err != nil {
		return nil, err
	}
	return legacyCgroup{path: path, c: found}, nil
}

// killAll ends the processes in a cgroup, and waits for it.
func killAll(ctx context.Context, c podCgroup) error {
	for ctx.Err() == nil {
		pids, err := c.pids()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := killAndWait(pid); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// killAndWait ends one process, by a descriptor: its number may be another's when the kernel is done with it.
func killAndWait(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 5000)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// unifiedCgroup is one of version 2.
type unifiedCgroup struct {
	path string
	m    *cgroup2.Manager
}

func (c unifiedCgroup) directory() string    { return filepath.Join(cgroupTop, c.path) }
func (unifiedCgroup) join() error            { return nil }
func (unifiedCgroup) begin() error           { return nil } // they hold since it was made
func (c unifiedCgroup) stat() (any, error)   { return c.m.Stat() }
func (c unifiedCgroup) outOfMemory() bool    { return killedForMemory(c.directory(), "memory.events") }
func (c unifiedCgroup) pids() ([]int, error) { return processes(c.directory()) }
func (c unifiedCgroup) delete() error        { return gone(c.m.Delete()) }
func (c unifiedCgroup) limit(res *specs.LinuxResources) error {
	if err := c.m.Update(cgroup2.ToResources(res)); err != nil {
		return err
	}
	return c.unified(res)
}

// unified writes limits that have the kernel's names.
func (c unifiedCgroup) unified(res *specs.LinuxResources) error {
	for name, value := range res.Unified {
		if name != filepath.Base(name) || !strings.Contains(name, ".") {
			return fmt.Errorf("%q is no limit of a cgroup", name)
		}
		if err := os.WriteFile(filepath.Join(c.directory(), name), []byte(value), 0o644); err != nil {
			return fmt.Errorf("set the limit %s: %w", name, err)
		}
	}
	return nil
}

// controllers are those of version 1 that the node has. They are looked for once: that reads all mounts of the node, of which each pod
// has some.
var controllers = sync.OnceValues(cgroup1.Default)

// measuredControllers are the ones of which CRI makes statistics.
func measuredControllers() ([]cgroup1.Subsystem, error) {
	all, err := controllers()
	var out []cgroup1.Subsystem
	for _, s := range all {
		if slices.Contains([]cgroup1.Name{cgroup1.Cpu, cgroup1.Cpuacct, cgroup1.Memory, cgroup1.Pids}, s.Name()) {
			out = append(out, s)
		}
	}
	return out, err
}

// legacyCgroup is one of version 1: a directory for each controller, and one of version 2 without limits where the machine has that beside.
type legacyCgroup struct {
	path  string
	c     cgroup1.Cgroup
	first *specs.LinuxResources
}

func (c legacyCgroup) directory() string {
	if cgroups.Mode() != cgroups.Hybrid {
		return ""
	}
	return filepath.Join(cgroupBeside, c.path)
}

// join moves the thread itself. For a process, by its number, the kernel would wait until all others are out of the way (a grace
// period of RCU): 5 to 20 ms for each container of the node, one after the other.
func (c legacyCgroup) join() error {
	for _, dir := range c.directories() {
		if err := writeExisting(filepath.Join(dir, "tasks"), "0"); err != nil {
			return err
		}
	}
	return nil
}

// begin sets all limits but those of huge pages: under a small share of a processor the thread that begins the process would
// keep this one waiting, and under a small limit of memory it could not begin it.
func (c legacyCgroup) begin() error { return c.c.Update(c.first) }

func (c legacyCgroup) stat() (any, error) {
	measured, err := cgroup1.Load(cgroup1.StaticPath(c.path), cgroup1.WithHierarchy(measuredControllers))
	if err != nil {
		return nil, err
	}
	return measured.Stat(cgroup1.IgnoreNotExist)
}

func (c legacyCgroup) outOfMemory() bool {
	return killedForMemory(filepath.Join(cgroupTop, string(cgroup1.Memory), c.path), "memory.oom_control")
}

func (c legacyCgroup) pids() ([]int, error) {
	// It is in all or, when what started it died in between, in some.
	found := map[int]bool{}
	for _, s := range append(c.directories(), filepath.Join(cgroupBeside, c.path)) {
		pids, err := processes(s)
		if err != nil {
			return nil, err
		}
		for _, p := range pids {
			found[p] = true
		}
	}
	var out []int
	for p := range found {
		out = append(out, p)
	}
	return out, nil
}

func (c legacyCgroup) directories() []string {
	var out []string
	for _, s := range c.c.Subsystems() {
		if p, ok := s.(interface{ Path(path string) string }); ok {
			out = append(out, p.Path(c.path))
		}
	}
	return out
}

func (c legacyCgroup) limit(res *specs.LinuxResources) error {
	if len(res.Unified) > 0 {
		return errors.New("limits with the kernel's names for cgroup v2 need cgroup v2, which this node does not use")
	}
	return c.c.Update(res)
}

func (c legacyCgroup) delete() error {
	return errors.Join(gone(c.c.Delete()), gone(unix.Rmdir(filepath.Join(cgroupBeside, c.path))))
}

// gone takes what is not there for no error.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, cgroup1.ErrCgroupDeleted) {
		return nil
	}
	return err
}

func writeExisting(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// processes in a cgroup's directory, none if it is not there.
func processes(dir string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []int
	for _, field := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil || pid <= 0 {
			return nil, fmt.Errorf("a cgroup has the process %q", field)
		}
		out = append(out, pid)
	}
	return out, nil
}

// killedForMemory says whether a file of a cgroup has processes that the kernel killed for memory.
func killedForMemory(dir, file string) bool {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			return n != "0"
		}
	}
	return false
}
