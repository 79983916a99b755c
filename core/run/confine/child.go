// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/run"
)

// Dying is how long a killed child is waited for. It holds nothing that others need; one
// that hangs in the kernel for longer is left to it.
const Dying = 5 * time.Second

const selfProgram = "/proc/self/exe"

// Program is this program, by a name by which it is found also when its file has been
// replaced meanwhile.
func Program() (string, error) {
	if _, err := os.Stat(selfProgram); err == nil {
		return selfProgram, nil
	}
	return os.Executable()
}

// Attributes are those of a child that dies with the thread that made it, and is in nobody's process group.
func Attributes(private bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if !private {
		return a
	}
	a.Cloneflags = unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	if os.Geteuid() != 0 {
		a.Cloneflags |= unix.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return a
}

// Scratch is the directory that a child may write to, and what removes it. One with a file
// system of its own needs none.
func Scratch(private bool) (dir string, remove func(), err error) {
	if private {
		return os.TempDir(), func() {}, nil
	}
	if dir, err = os.MkdirTemp("", "wasmplane-child-"); err != nil {
		return "", nil, fmt.Errorf("make a directory for a child to write to: %w", err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, nobody, nobody); err != nil {
			return "", nil, errors.Join(fmt.Errorf("hand the directory of a child over: %w", err), os.RemoveAll(dir))
		}
	}
	return dir, func() { _ = os.RemoveAll(dir) }, nil
}

// Launch starts a command on a thread that lives as long as the command does, as the
// command dies with the thread that started it. The channel is closed when it has ended.
func Launch(cmd *exec.Cmd) (<-chan struct{}, error) {
	begun, ended := make(chan error, 1), make(chan struct{})
	run.Go("confined child: its thread", func() error {
		defer close(ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		begun <- err
		if err == nil {
			_ = cmd.Wait() // its state tells more than the error
		}
		return nil
	})
	return ended, <-begun
}

// Unavailable says that name spaces cannot be had here.
func Unavailable(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EACCES)
}

// Head keeps the first 4 KiB of what is written to it.
type Head struct{ kept []byte }

// Write implements io.Writer.
func (h *Head) Write(b []byte) (int, error) {
	const most = 4 << 10
	h.kept = append(h.kept, b[:min(len(b), most-len(h.kept))]...)
	return len(b), nil
}

// String is what was kept.
func (h *Head) String() string { return string(h.kept) }

// Ended is how a child ended.
type Ended struct {
	State *os.ProcessState
	Last  string // the beginning of what it wrote to its standard error
	CPU   time.Duration
}

// OutOfMemory says that the child wanted more than it may have.
func (e Ended) OutOfMemory() bool {
	for _, sign := range []string{
		"out of memory", "cannot allocate memory", "failed to create new OS thread", "stack overflow", "stack exceeds",
	} {
		if strings.Contains(e.Last, sign) {
			return true
		}
	}
	return false
}

// OutOfTime says that the child used up its processor time, of which it had so much.
func (e Ended) OutOfTime(limit time.Duration) bool {
	status, ok := e.State.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && e.CPU >= limit-time.Second
}

// Run starts command, made anew by each call, and has talk speak with it: what is written to in reaches
// its standard input, out is its standard output. The child is killed when talk fails or ctx ends. started is false
// where the process could not be made: with name spaces, because there are none here.
func Run(ctx context.Context, cmd *exec.Cmd, talk func(in io.Writer, out io.Reader) error) (end Ended, started bool, err error) {
	from, answers, err := os.Pipe()
	if err != nil {
		return end, true, fmt.Errorf("make a pipe from a child: %w", err)
	}
	defer func() { _ = from.Close() }()
	questions, to, err := os.Pipe()
	if err != nil {
		return end, true, errors.Join(fmt.Errorf("make a pipe to a child: %w", err), answers.Close())
	}
	defer func() { _ = to.Close() }()
	last := &Head{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = questions, answers, last, Dying
	ended, err := Launch(cmd)
	_, _ = answers.Close(), questions.Close() // the child's now
	if err != nil {
		return end, !Unavailable(err), fmt.Errorf("start a child: %w", err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = cmd.Process.Kill()
		deadline := time.Now().Add(Dying)
		_, _ = from.SetReadDeadline(deadline), to.SetWriteDeadline(deadline)
	})
	defer stop()
	err = talk(to, from)
	if err != nil {
		_ = cmd.Process.Kill()
	}
	_ = to.Close()
	select {
	case <-ended:
	case <-time.After(Dying):
		return end, true, errors.Join(err, cmd.Process.Kill(), errors.New("a child did not end"))
	}
	end = Ended{State: cmd.ProcessState, Last: last.String(), CPU: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return end, true, err
}
