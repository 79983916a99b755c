// SPDX-License-Identifier: Apache-2.0

// Package confine is for children that read what nobody trusts: modules to compile, charts to
// render. A child is this very binary in another role. Before it reads a byte it gives up, by
// Enter, everything that it does not need: user, capabilities, network, files, most system calls;
// and it takes limits that the kernel enforces: address space, processor time, size of
// files, descriptors. What it may still do is to read its standard input, to compute, and to write
// its standard output.
//
// The parent starts it by Run, or by the parts of it. The child is killed when its time is over, and when the
// parent dies. Where the kernel gives no name spaces, the child has the other bounds, and those of nobody.
package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bounds of a child. The kernel enforces them.
type Bounds struct {
	Memory  int64  // bytes of address space that it may take besides what it begins with
	CPU     int64  // seconds of processor time
	File    int64  // bytes of a file that it writes
	Scratch string // where it may write; with Private, where a file system of its own is put
	Private bool   // it has name spaces of its own, and may mount
}

const (
	openFiles  = 32
	nobody     = 65534
	niceness   = 5 // it gives way to serving
	memoryFile = "/proc/self/statm"
)

// Enter takes from this process what it does not need. Nothing hostile has been read yet.
// It says where it may write from now on, and gives what the kernel says of this process,
// which is out of reach later; nil where it cannot be had. The order matters: what needs rights comes first.
func (b Bounds) Enter() (scratch string, status *os.File, err error) {
	closeInherited()
	status, _ = os.Open("/proc/self/status") // for reports; without it they lack a number
	scratch, err = b.enter()
	return scratch, status, err
}

func (b Bounds) enter() (scratch string, err error) {
	scratch = b.Scratch
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, niceness); err != nil {
		return "", fmt.Errorf("give way to the server: %w", err)
	}
	if err := b.limit(); err != nil {
		return "", err
	}
	if b.Private {
		if err := b.enterScratch(); err != nil {
			return "", err
		}
		scratch = "/"
	}
	if err := dropRights(); err != nil {
		return "", err
	}
	return scratch, filterCalls()
}

// closeInherited closes what a library may have left open in the server without the
// flag that closes it here. Go's own descriptors stay: its poller's.
func closeInherited() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return // only what is open could be used, and the filter of calls comes still
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 {
			continue
		}
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err != nil || strings.HasPrefix(to, "anon_inode:") ||
			strings.HasPrefix(to, "/sys/fs/cgroup/") {
			continue
		}
		_ = unix.Close(fd)
	}
}

// limit has the kernel bound this process.
func (b Bounds) limit() error {
	size, err := addressSpace()
	if err != nil {
		return err
	}
	for _, l := range []struct {
		what  string
		which int
		value uint64
	}{
		{"address space", unix.RLIMIT_AS, size + uint64(b.Memory)},
		{"processor time", unix.RLIMIT_CPU, uint64(b.CPU)},
		{"size of files", unix.RLIMIT_FSIZE, uint64(b.File)},
		{"open files", unix.RLIMIT_NOFILE, openFiles},
		{"core dumps", unix.RLIMIT_CORE, 0},
		{"locked memory", unix.RLIMIT_MEMLOCK, 0},
	} {
		if err := unix.Setrlimit(l.which, &unix.Rlimit{Cur: l.value, Max: l.value}); err != nil {
			return fmt.Errorf("bound the process's %s: %w", l.what, err)
		}
	}
	return nil
}

// addressSpace is what the process has mapped or reserved by now, in bytes.
func addressSpace() (uint64, error) {
	b, err := os.ReadFile(memoryFile)
	if err != nil {
		return 0, fmt.Errorf("read the size of the process: %w", err)
	}
	first, _, _ := strings.Cut(string(b), " ")
	pages, err := strconv.ParseUint(first, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the size of the process from %s: %w", memoryFile, err)
	}
	return pages * uint64(os.Getpagesize()), nil
}

// enterScratch makes a small file system in memory the only one that there is.
func (b Bounds) enterScratch() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to itself: %w", err)
	}
	size := "mode=0777,size=" + strconv.FormatInt(b.File+1<<20, 10)
	if err := unix.Mount("tmpfs", b.Scratch, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, size); err != nil {
		return fmt.Errorf("mount a file system of its own: %w", err)
	}
	if err := errors.Join(unix.Chdir(b.Scratch), unix.Chroot(".")); err != nil {
		return fmt.Errorf("leave the file system: %w", err)
	}
	return nil
}

// dropRights makes the process nobody, for good.
func dropRights() error {
	if os.Geteuid() == 0 {
		err := syscall.Setgroups(nil)
		if err == nil || errors.Is(err, unix.EPERM) { // a user name space of ours has one user only
			err = errors.Join(syscall.Setresgid(nobody, nobody, nobody), syscall.Setresuid(nobody, nobody, nobody))
		}
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("become nobody: %w", err)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := onEveryThread(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0]))); err != nil {
		return fmt.Errorf("drop all capabilities: %w", err)
	}
	if err := onEveryThread(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return fmt.Errorf("give up rights for good: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("keep others from looking in: %w", err)
	}
	return nil
}

// onEveryThread makes a call that is about one thread on all of them. Where Go cannot
// do that (with cgo), the filter of calls still holds for all threads.
func onEveryThread(call, a, b uintptr) error {
	_, _, e := syscall.AllThreadsSyscall(call, a, b, 0)
	if e == 0 || e == unix.ENOTSUP {
		return nil
	}
	return e
}

// calls are the system calls that computing needs: Go's runtime, and files below the scratch
// directory. No others: no sockets, no programs, no other processes.
func calls() []uint32 {
	return append([]uint32{
		unix.SYS_READ, unix.SYS_WRITE, unix.SYS_PREAD64, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_STATX, unix.SYS_LSEEK, unix.SYS_FCNTL,
		unix.SYS_OPENAT, unix.SYS_MKDIRAT, unix.SYS_RENAMEAT, unix.SYS_UNLINKAT, unix.SYS_GETDENTS64, unix.SYS_FSYNC, unix.SYS_FACCESSAT,
		unix.SYS_READLINKAT, unix.SYS_GETCWD,
		unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE, unix.SYS_MREMAP, unix.SYS_BRK, unix.SYS_MINCORE,
		unix.SYS_FUTEX, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY,
		unix.SYS_RESTART_SYSCALL,
		unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_TGKILL, unix.SYS_GETPID,
		unix.SYS_GETTID,
		unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2, unix.SYS_PIPE2,
		unix.SYS_GETRANDOM, unix.SYS_GETRUSAGE, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_MEMBARRIER, unix.SYS_PRCTL, unix.SYS_UNAME,
		unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
	}, machineCalls()...)
}

// Offsets in what the kernel shows a filter (struct seccomp_data): the call's number, the
// machine that it is made for, and the lower half of its first argument.
const (
	offNumber  = 0
	offMachine = 4
	offFirst   = 16
)

// filterCalls lets the kernel refuse every other system call, on all threads. Threads may
// be made (clone with CLONE_THREAD), processes not.
func filterCalls() error {
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	ret := func(what uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: what}
	}
	refuse := ret(unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM))
	program := []unix.SockFilter{
		load(offMachine),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: auditMachine, Jt: 1},
		ret(unix.SECCOMP_RET_KILL_PROCESS),
		load(offNumber),
	}
	for _, n := range calls() {
		program = append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: n, Jf: 1}, ret(unix.SECCOMP_RET_ALLOW))
	}
	program = append(program,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_CLONE, Jt: 1}, refuse,
		load(offFirst),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: unix.CLONE_THREAD, Jf: 1}, ret(unix.SECCOMP_RET_ALLOW),
		refuse,
	)
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	// Needed on the thread that asks; the others get it with the filter.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up rights for good: %w", err)
	}
	_, _, e := syscall.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&f)))
	runtime.KeepAlive(program)
	if e != 0 && e != unix.ENOSYS && e != unix.EINVAL { // a kernel without filters
		return fmt.Errorf("filter system calls: %w", e)
	}
	return nil
}
