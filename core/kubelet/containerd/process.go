// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// process names a process for good: a pid alone may be given to another.
type process struct {
	PID   int
	Start string // in clock ticks since boot, /proc/PID/stat field 22
	Boot  string // the boot it was started in
}

// pidFile is what a running containerd says about itself.
type pidFile struct {
	process
	Hash string
}

// identify reads a process's start time; fs.ErrNotExist when there is none.
func identify(pid int) (process, error) {
	p, err := linuxhost.StatProcess(pid)
	if err != nil {
		return process{}, err
	}
	if p.Ended {
		return process{}, fmt.Errorf("look at process %d: it has ended: %w", pid, os.ErrNotExist)
	}
	return process{PID: pid, Start: p.Start, Boot: bootID()}, nil
}

func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func writePIDFile(path string, p pidFile) error {
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("write the pid file: %w", err)
	}
	return atomicfile.Write(path, data, 0o600)
}

// readPIDFile answers what runs; fs.ErrNotExist when nothing does.
func readPIDFile(path string) (pidFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return pidFile{}, fmt.Errorf("read the pid file: %w", err)
	}
	var p pidFile
	if err := json.Unmarshal(data, &p); err != nil {
		return pidFile{}, fmt.Errorf("read the pid file %s: %w", path, err)
	}
	now, err := identify(p.PID)
	if err != nil {
		return pidFile{}, err
	}
	if now != p.process {
		return pidFile{}, fmt.Errorf("process %d is another one now: %w", p.PID, os.ErrNotExist)
	}
	return p, nil
}

// watched is a process held by a pidfd: it can be waited for and signalled
// whether or not it is our child, and never mistaken for another.
type watched struct {
	pidFile
	fd     *os.File
	ended  chan struct{} // closed when the process has ended
	closed chan struct{} // closed when the goroutine has
}

// watch takes hold of a process, which must be the one that p names. The caller
// closes it.
func watch(p pidFile) (*watched, error) {
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch containerd (pid %d): %w", p.PID, err)
	}
	w := &watched{
		pidFile: p,
		fd:      os.NewFile(uintptr(fd), "pidfd"),
		ended:   make(chan struct{}),
		closed:  make(chan struct{}),
	}
	raw, err := w.fd.SyscallConn()
	if err != nil {
		w.fd.Close()
		return nil, fmt.Errorf("watch containerd (pid %d): %w", p.PID, err)
	}
	run.Go("containerd: its end", func() error { w.run(raw); return nil })
	// Only now is it certain that the pidfd is of the process that was meant.
	if now, err := identify(p.PID); err != nil || now != p.process {
		w.close()
		return nil, fmt.Errorf("watch containerd (pid %d): it has ended", p.PID)
	}
	return w, nil
}

// run waits for the end of the process, or for close.
func (w *watched) run(raw syscall.RawConn) {
	defer close(w.closed)
	// A pidfd becomes readable when its process ends.
	err := raw.Read(func(fd uintptr) bool {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && ready > 0
	})
	if err != nil {
		return // closed
	}
	// Reap it if it is ours; if not, the kernel says so and somebody else will.
	var status unix.WaitStatus
	_, _ = unix.Wait4(w.PID, &status, unix.WNOHANG, nil)
	close(w.ended)
}

func (w *watched) signal(s syscall.Signal) error {
	raw, err := w.fd.SyscallConn()
	if err != nil {
		return fmt.Errorf("signal containerd (pid %d): %w", w.PID, err)
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) })
	if err = errors.Join(err, sent); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal containerd (pid %d): %w", w.PID, err)
	}
	return nil
}

// close lets go of the process, which runs on.
func (w *watched) close() {
	w.fd.Close()
	<-w.closed
}
