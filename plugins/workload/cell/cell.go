// SPDX-License-Identifier: Apache-2.0

// Package cell isolates the process that runs a WebAssembly module, from within and before it knows the module, where no other
// container runtime does (pods of the runtime handler wasm-only). Whoever starts the process has given it a cgroup, the pod's
// network namespace, and mount, PID, IPC, UTS and cgroup namespaces of its own; Enter does the rest: the root directory
// and the volumes, the user, capabilities, limits and a filter of system calls. There is no /proc, no /sys and
// no device in a cell, and nothing in it can be executed.
package cell

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Config says what the process may see and be.
type Config struct {
	// Root is the directory that becomes the process' root: a mount point.
	Root string `json:"root"`
	// ReadOnly forbids to write in the root directory, but for what is mounted there.
	ReadOnly bool `json:"readOnly,omitempty"`
	// Mounts are files and directories of the node that are seen below Root, in this order.
	Mounts []Mount `json:"mounts,omitempty"`
	// UID, GID and Groups are the process' own.
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	// Capabilities are kept (as "CAP_FOWNER") if the user is 0; another one has none.
	Capabilities []string `json:"capabilities,omitempty"`
	// Rlimits are set besides; a name that is not known is an error.
	Rlimits []Rlimit `json:"rlimits,omitempty"`
}

// Mount is a file or directory that is seen at another place.
type Mount struct {
	Source   string `json:"source"`
	At       string `json:"at"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Rlimit is a limit of setrlimit(2), by its name in OCI's specification ("RLIMIT_NOFILE").
type Rlimit struct {
	Type string `json:"type"`
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

// Enter isolates this process, for good. After an error it is isolated by half, and must end.
func Enter(c Config) error {
	unix.Umask(0o022)
	if err := c.files(); err != nil {
		return err
	}
	for _, l := range c.Rlimits {
		what, ok := rlimits[l.Type]
		if !ok {
			return fmt.Errorf("the limit %q is not known", l.Type)
		}
		// Not the package unix's: Go itself raises a process' limit of open files again unless it hears of a new one.
		if err := syscall.Setrlimit(what, &syscall.Rlimit{Cur: l.Soft, Max: l.Hard}); err != nil {
			return fmt.Errorf("set the limit %s: %w", l.Type, err)
		}
	}
	if err := c.identity(); err != nil {
		return err
	}
	if err := filter(); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	return nil
}

// files makes the root directory. What is mounted is taken by its descriptor first and put to its place after the root has changed: no
// link in an image leads out of it.
func (c Config) files() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("separate the mounts: %w", err)
	}
	trees := make([]int, len(c.Mounts))
	for i, m := range c.Mounts {
		tree, err := take(m)
		if err != nil {
			return fmt.Errorf("take %s, for %s: %w", m.Source, m.At, err)
		}
		defer unix.Close(tree)
		trees[i] = tree
	}
	if err := pivot(c.Root); err != nil {
		return fmt.Errorf("change the root directory: %w", err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", 0, &attr); err != nil {
		return fmt.Errorf("restrict the root directory: %w", err)
	}
	dev := false
	for i, m := range c.Mounts {
		if at := path.Clean(m.At); !dev && (at == "/dev" || len(at) > 5 && at[:5] == "/dev/") {
			if err := scratch("/dev"); err != nil {
				return err
			}
			dev = true
		}
		if err := put(trees[i], m); err != nil {
			return fmt.Errorf("mount %s: %w", m.At, err)
		}
	}
	if !c.ReadOnly {
		return nil
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make the root directory read-only: %w", err)
	}
	return nil
}

func take(m Mount) (int, error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, m.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID}
	if m.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return -1, errors.Join(err, unix.Close(tree))
	}
	return tree, nil
}

// put mounts a tree; its place is made if it is not there.
func put(tree int, m Mount) error {
	at := path.Clean("/" + m.At)
	var st unix.Stat_t
	if err := unix.Fstat(tree, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
	} else if _, err := os.Stat(at); err != nil {
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		f, err := os.OpenFile(at, os.O_CREATE|os.O_RDONLY|unix.O_NONBLOCK, 0o644)
		if err != nil {
			return err
		}
		_ = f.Close()
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS)
}

// pivot leaves the node's mounts behind.
func pivot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return err
	}
	// The old root comes to lie on the new one, and is taken away with all below it.
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return unix.Chdir("/")
}

// scratch covers a directory with an empty one in memory.
func scratch(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755,size=64k"); err != nil {
		return fmt.Errorf("make a directory %s: %w", dir, err)
	}
	return nil
}

// rlimits by OCI's names. Linux has the same numbers on all architectures that Go's WebAssembly engine compiles for.
var rlimits = map[string]int{
	"RLIMIT_CPU": unix.RLIMIT_CPU, "RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_DATA": unix.RLIMIT_DATA, "RLIMIT_STACK": unix.RLIMIT_STACK,
	"RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_RSS": unix.RLIMIT_RSS, "RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE,
	"RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK, "RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_LOCKS": unix.RLIMIT_LOCKS,
	"RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING, "RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE,
	"RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO, "RLIMIT_RTTIME": unix.RLIMIT_RTTIME,
}

// capabilities that a cell can keep. A module can make use of no other.
var capabilities = map[string]int{
	"CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_FOWNER": unix.CAP_FOWNER, "CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
}

// entering are the capabilities that Enter needs itself: to mount, to become another user, to set limits and to give up capabilities.
var entering = []int{unix.CAP_SYS_ADMIN, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SYS_RESOURCE, unix.CAP_SETPCAP}

// Bound takes from this thread's bounding set what neither Enter needs nor a cell can keep, so that no process which the thread
// makes ever has it. It is for good: the thread has to end with that.
func Bound() error {
	last, err := lastCapability()
	if err != nil {
		return err
	}
	needed := uint64(0)
	for _, bit := range entering {
		needed |= 1 << bit
	}
	for _, bit := range capabilities {
		needed |= 1 << bit
	}
	for bit := range last + 1 {
		if needed&(1<<bit) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(bit), 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", bit, err)
		}
	}
	return nil
}

// identity gives up the user and all privileges, in every thread.
func (c Config) identity() error {
	keep := uint64(0)
	if c.UID == 0 {
		for _, name := range c.Capabilities {
			bit, ok := capabilities[name]
			if !ok {
				return fmt.Errorf("the capability %q is of no use to a module", name)
			}
			keep |= 1 << bit
		}
	}
	last, err := lastCapability()
	if err != nil {
		return err
	}
	for bit := range last + 1 {
		// What this thread has not, none has: they all are of the one that began the process. Most are gone like that (Bound), and
		// each that is not interrupts all threads.
		if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(bit), 0, 0, 0); keep&(1<<bit) != 0 || err == nil && has == 0 {
			continue
		}
		if err := everyThread(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(bit), 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", bit, err)
		}
	}
	groups := make([]int, len(c.Groups))
	for i, g := range c.Groups {
		groups[i] = int(g)
	}
	// Of all threads, as these functions of Go are.
	if err := errors.Join(syscall.Setgroups(groups), syscall.Setgid(int(c.GID)), syscall.Setuid(int(c.UID))); err != nil {
		return fmt.Errorf("become user %d: %w", c.UID, err)
	}
	if err := everyThread(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	low, high := uint32(keep), uint32(keep>>32)
	data := [2]unix.CapUserData{{Effective: low, Permitted: low}, {Effective: high, Permitted: high}}
	err = everyThread(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return nil
}

// lastCapability is the highest one that the kernel knows.
func lastCapability() (int, error) {
	for bit := 63; bit >= 0; bit-- {
		if _, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(bit), 0, 0, 0); err == nil {
			return bit, nil
		}
	}
	return 0, errors.New("the kernel knows no capability")
}

func everyThread(number, a, b, c uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall(number, a, b, c); errno != 0 {
		return errno
	}
	return nil
}

// filter lets all threads make the system calls of the engine and no others, which fail as not permitted.
func filter() error {
	program := assemble(auditArch, slices.Concat(allowed, allowedHere))
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&f)))
	if errno != 0 {
		return errno
	}
	return nil
}

// Where the kernel's struct seccomp_data has what. Both of Go's architectures with native code of modules are little-endian.
const (
	offsetNumber   = 0
	offsetArch     = 4
	offsetArgument = 16 // of the first one, its lower half
	offsetSecond   = 24 // and of the second one
)

// assemble writes the filter: calls by number, of this architecture alone; three of them by an argument.
func assemble(arch uint32, numbers []uint32) []unix.SockFilter {
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	// equal goes on with the next instruction, or skips some.
	equal := func(k uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: skip, K: k}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	refuse := func(e syscall.Errno) unix.SockFilter { return ret(unix.SECCOMP_RET_ERRNO | uint32(e)) }
	p := []unix.SockFilter{
		load(offsetArch), equal(arch, 1),
		{Code: unix.BPF_JMP | unix.BPF_JA, K: 1},
		ret(unix.SECCOMP_RET_KILL_PROCESS),
		load(offsetNumber),
		// Go takes clone where there is no clone3, whose flags are in memory.
		equal(unix.SYS_CLONE3, 1), refuse(unix.ENOSYS),
		// A thread, but no process: clone with CLONE_THREAD alone of what makes anything new.
		equal(unix.SYS_CLONE, 5), load(offsetArgument),
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: unix.CLONE_THREAD | newNamespaces},
		equal(unix.CLONE_THREAD, 1), ret(unix.SECCOMP_RET_ALLOW), refuse(unix.EPERM),
		equal(unix.SYS_SOCKET, 6), load(offsetArgument),
		equal(unix.AF_INET, 1), ret(unix.SECCOMP_RET_ALLOW),
		equal(unix.AF_INET6, 1), ret(unix.SECCOMP_RET_ALLOW), refuse(unix.EPERM),
		// How much can be read of a descriptor, which poll_oneoff says, and nothing else of a device or socket.
		equal(unix.SYS_IOCTL, 4), load(offsetSecond),
		equal(unix.TIOCINQ, 1), ret(unix.SECCOMP_RET_ALLOW), refuse(unix.EPERM),
	}
	for _, n := range numbers {
		p = append(p, equal(n, 1), ret(unix.SECCOMP_RET_ALLOW))
	}
	return append(p, refuse(unix.EPERM))
}

const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET |
	unix.CLONE_NEWUSER | unix.CLONE_NEWCGROUP

// allowed are the system calls of Go's runtime, and of files and sockets.
var allowed = []uint32{
	// Memory, threads, signals, time.
	unix.SYS_BRK, unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE, unix.SYS_MREMAP, unix.SYS_MINCORE, unix.SYS_MEMBARRIER,
	unix.SYS_FUTEX, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_GETTID, unix.SYS_GETPID, unix.SYS_GETPPID, unix.SYS_TGKILL,
	unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_RESTART_SYSCALL,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK,
	unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_GETTIMEOFDAY, unix.SYS_GETRANDOM,
	unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_GETRLIMIT, unix.SYS_UNAME, unix.SYS_UMASK,
	// Files.
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_PREADV, unix.SYS_PWRITEV,
	unix.SYS_CLOSE, unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_FSTAT, unix.SYS_STATX, unix.SYS_FSTATFS, unix.SYS_STATFS, unix.SYS_LSEEK,
	unix.SYS_GETDENTS64, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_SYMLINKAT,
	unix.SYS_READLINKAT, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_FTRUNCATE,
	unix.SYS_FALLOCATE, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_UTIMENSAT, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_FLOCK,
	unix.SYS_FCNTL, unix.SYS_DUP, unix.SYS_DUP3, unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE, unix.SYS_SPLICE, unix.SYS_FADVISE64,
	unix.SYS_GETCWD, unix.SYS_PIPE2, unix.SYS_EVENTFD2,
	// Sockets, of IP alone.
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2, unix.SYS_PPOLL, unix.SYS_PSELECT6,
	unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT, unix.SYS_ACCEPT4, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME,
	unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKOPT, unix.SYS_SENDTO, unix.SYS_RECVFROM, unix.SYS_SENDMSG, unix.SYS_RECVMSG, unix.SYS_SHUTDOWN,
}
