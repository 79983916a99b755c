// SPDX-License-Identifier: Apache-2.0

// Package counters reads what the kernel counts for the cgroups and networks of a node's pods, in cgroups of version 1 and 2. It reads when
// it is asked, keeps nothing, and changes nothing. A value that the kernel does not tell is left out and never made up; a cgroup that has
// gone meanwhile is no error. What one look costs is bounded by the cgroups that are asked for: files of a few kilobytes each.
package counters

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Group is what the kernel has counted for a cgroup and those below it. A part is nil where the machine has no such controller.
type Group struct {
	CPU      *CPU
	Memory   *Memory
	Tasks    *Tasks
	Disks    []Disk
	Pressure []Pressure // version 2 only
}

// CPU time since the cgroup was made, and its bounds.
type CPU struct {
	Usage, User, System time.Duration
	Periods, Throttled  uint64 // periods of the quota: all, and those at whose end it was used up
	ThrottledTime       time.Duration
	Quota, Period       time.Duration // of no quota: zero
	Shares              uint64        // as version 1 has them
}

// Memory in bytes, now unless said otherwise.
type Memory struct {
	Usage, WorkingSet, RSS, Cache, Mapped, Swap uint64
	Most                                        *uint64 // at any time; nil where the kernel does not tell
	Failures                                    uint64  // times that the limit was met
	Faults, MajorFaults                         uint64
	OOMKills                                    uint64
	Limit, SwapLimit, Reserved                  uint64 // zero: none
}

// Tasks that are in the cgroup now.
type Tasks struct{ Processes, Threads, MostThreads uint64 } // MostThreads zero: no limit

// Disk is what went to and from a device, and was not served from memory.
type Disk struct {
	Device                                 string // /dev/NAME
	Reads, ReadBytes, Writes, WrittenBytes uint64
}

// Pressure is for how long tasks waited for something (cpu, memory or io): some of them, or all.
type Pressure struct {
	Of         string
	Some, Full time.Duration
}

// Config of a Reader.
type Config struct {
	// Mounts of cgroup controllers by their names, or of the unified hierarchy under the name "".
	Mounts map[string]string
	// Proc is where procfs is ("/proc" if empty).
	Proc string
	// Pods is the cgroup that the cgroups of pods are in. Required.
	Pods string
	// Dir is a directory of the file system that pods are on; empty: none is known.
	Dir string
	// Machine that this is.
	Machine Machine
}

// Machine is how one is told from others.
type Machine struct{ ID, Boot, UUID string }

// Reader of counters. It may be used by several at a time.
type Reader struct {
	cfg    Config
	device func() string
}

// New makes a Reader.
func New(cfg Config) *Reader {
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	r := &Reader{cfg: cfg}
	r.device = sync.OnceValue(func() string { return deviceOf(cfg.Dir, r.diskstats()) })
	return r
}

// Machine whose counters are read.
func (r *Reader) Machine() Machine { return r.cfg.Machine }

// Device of the file system that pods are on; empty where it is not known.
func (r *Reader) Device() string { return r.device() }

// Pods is the cgroup that all pods are in.
func (r *Reader) Pods() string { return r.cfg.Pods }

// Pod is the cgroup of a pod; empty where it has none.
func (r *Reader) Pod(uid string) string {
	if uid == "" || strings.ContainsAny(uid, "/\x00") {
		return ""
	}
	for _, quality := range []string{"", "burstable", "besteffort"} {
		path := filepath.Join(r.cfg.Pods, quality, "pod"+uid)
		if _, err := os.Stat(r.dir("memory", path)); err == nil {
			return path
		}
	}
	return ""
}

// dir of a cgroup in the hierarchy that has a controller.
func (r *Reader) dir(controller, path string) string {
	if unified, ok := r.cfg.Mounts[""]; ok {
		return filepath.Join(unified, path)
	}
	if mount, ok := r.cfg.Mounts[controller]; ok {
		return filepath.Join(mount, path)
	}
	return "/nonexistent" // a machine without the controller
}

// Look is one look at the machine.
type Look struct {
	*Reader
	disks map[string]string // names by major:minor
}

// Look begins a look. The names of disks are those that they have now.
func (r *Reader) Look() *Look {
	l := &Look{Reader: r, disks: map[string]string{}}
	for _, d := range r.diskstats() {
		l.disks[d[0]+":"+d[1]] = "/dev/" + d[2]
	}
	return l
}

// Group reads a cgroup; false where there is none, or none any more.
func (l *Look) Group(path string) (Group, bool) {
	var g Group
	if _, ok := l.cfg.Mounts[""]; ok {
		g = l.v2(l.dir("", path))
	} else {
		g = l.v1(path)
	}
	return g, g.CPU != nil || g.Memory != nil
}

// folder is a cgroup's, whose files are read. What has been read stands when a later file is gone.
type folder string

// most bytes of a file that are read.
const most = 1 << 20

// text of a file; false where the kernel does not have it, or the cgroup has gone.
func (f folder) text(name string) (string, bool) {
	file, err := os.Open(filepath.Join(string(f), name))
	if err != nil {
		return "", false
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return "", false
	}
	return string(bytes.TrimSpace(data)), true
}

// number in a file; zero where it is another word ("max") or none.
func (f folder) number(name string) uint64 {
	n, _ := f.has(name)
	return n
}

func (f folder) has(name string) (uint64, bool) {
	text, ok := f.text(name)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

// table of a file whose lines begin with NAME NUMBER.
func (f folder) table(name string) (map[string]uint64, bool) {
	text, ok := f.text(name)
	if !ok {
		return nil, false
	}
	out := map[string]uint64{}
	for line := range strings.Lines(text) {
		word := strings.Fields(line)
		if len(word) < 2 {
			continue
		}
		if n, err := strconv.ParseUint(word[1], 10, 64); err == nil {
			out[word[0]] = n
		}
	}
	return out, true
}

// limit is zero where there is none: in version 1 that is a number above all memory.
func limit(n uint64) uint64 {
	const none = 1 << 62
	if n >= none {
		return 0
	}
	return n
}

// less is not below zero: the kernel does not count everything at the same moment.
func less(a, b uint64) uint64 { return a - min(a, b) }

func micros(n uint64) time.Duration { return time.Duration(n) * time.Microsecond } //nolint:gosec // centuries do not overflow it

// groups that are walked for processes: a container may have made any number below its own.
const groups = 256

// processes in a cgroup and below it.
func processes(dir string) (n uint64) {
	left := groups
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // cgroups come and go while we look
		}
		if left--; left < 0 {
			return filepath.SkipAll
		}
		n += uint64(len(pids(path)))
		return nil
	})
	return n
}

// pids of the processes in a cgroup.
func pids(dir string) []string {
	text, _ := folder(dir).text("cgroup.procs")
	return strings.Fields(text)
}
