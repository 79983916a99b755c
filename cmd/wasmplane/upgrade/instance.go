// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/supervisor"
	"github.com/wasmplane/wasmplane/core/run"
)

// instance is the process that has a data directory, and how it is started.
type instance struct {
	dir    datadir.Dir
	pid    int
	binary string   // by which it runs, and will run again
	args   []string // without the program
	folder string
	env    []string

	// By whom it is started anew: a command of the operator's, a supervisor, or nobody.
	command string
	host    *supervisor.Host
	service string

	stop    func(context.Context) error
	started *os.Process // by start; nil = none
	gone    <-chan struct{}
}

// find looks at the process that runs in a directory.
func find(ctx context.Context, dir datadir.Dir) (*instance, error) {
	pid, err := dir.Owner()
	if err != nil {
		return nil, err
	}
	if pid == 0 {
		return nil, fmt.Errorf("nothing runs in %s, so that nobody would see whether a new binary works: start it, and then upgrade it", dir)
	}
	if node, err := dir.NodeOwner(); err != nil || node != 0 && node != pid {
		return nil, errors.Join(err, fmt.Errorf("process %d runs the kubelet of %s by itself: components that are started one by one are upgraded one by one", node, dir))
	}
	if err := runsAs(pid, os.Geteuid()); err != nil {
		return nil, err
	}
	i := &instance{dir: dir, pid: pid}
	of := func(name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }
	if i.binary, err = os.Readlink(of("exe")); err != nil {
		return nil, fmt.Errorf("see which program process %d runs: %w", pid, err)
	}
	i.binary = strings.TrimSuffix(i.binary, " (deleted)")
	if i.folder, err = os.Readlink(of("cwd")); err != nil {
		return nil, fmt.Errorf("see where process %d runs: %w", pid, err)
	}
	args, err := words(of("cmdline"))
	if err != nil || len(args) < 2 {
		return nil, errors.Join(err, fmt.Errorf("process %d has no arguments", pid))
	}
	i.args = args[1:]
	if i.env, err = words(of("environ")); err != nil {
		return nil, err
	}
	// These were for that one process.
	i.env = slices.DeleteFunc(i.env, func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains([]string{
			"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "INVOCATION_ID", "JOURNAL_STREAM", "LISTEN_PID",
			"LISTEN_FDS",
		}, name)
	})
	i.host, i.service = supervisor.Of(ctx, pid)
	return i, nil
}

// runsAs fails where a process is another user's: its binary, its folder and its environment are what that one says,
// and would be run by us.
func runsAs(pid, user int) error {
	info, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid)))
	if err != nil {
		return fmt.Errorf("see whose process %d is: %w", pid, err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != user {
		return fmt.Errorf("process %d is of the user %d, and this command of the user %d: upgrade it as the user whose it is", pid, st.Uid, user)
	}
	return nil
}

// words are the strings of a file of /proc, which end in zeros.
func words(file string) ([]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return strings.FieldsFunc(string(bytes.TrimSpace(b)), func(r rune) bool { return r == 0 }), nil
}

// by says who starts the process anew.
func (i *instance) by() string {
	switch {
	case i.command != "":
		return "by `" + i.command + "`"
	case i.host != nil:
		return fmt.Sprintf("by %s, as the service %s", i.host.Kind, i.service)
	}
	return "in the background, with what it prints in " + i.dir.Restart()
}

// restart starts the process anew. What is returned ends when it is known that this has
// failed, or, with nil, that who was asked for it has done it.
func (i *instance) restart(ctx context.Context) (<-chan error, error) {
	switch {
	case i.command != "":
		return run.Go("restart", func() error {
			cmd := exec.CommandContext(ctx, "sh", "-c", i.command)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", i.command, err, bytes.TrimSpace(out))
			}
			return nil
		}), nil
	case i.host != nil:
		return run.Go("restart", func() error { return i.host.Restart(ctx, i.service) }), nil
	}
	if err := i.stop(ctx); err != nil {
		return nil, err
	}
	return i.start()
}

// start starts the process itself, apart from this one and its terminal.
func (i *instance) start() (<-chan error, error) {
	out, err := os.OpenFile(i.dir.Restart(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start the cluster anew: %w", err)
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(i.binary, i.args...) //nolint:noctx // it outlives this command
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = i.folder, i.env, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the cluster anew: %w", err)
	}
	gone := make(chan struct{})
	i.started, i.gone = cmd.Process, gone
	return run.Go("cluster", func() error {
		err := cmd.Wait()
		close(gone)
		return errors.Join(fmt.Errorf("process %d has ended", cmd.Process.Pid), err)
	}), nil
}

// end kills what may hang in the directory, so that another can be started.
func (i *instance) end(ctx context.Context) error {
	if i.command != "" || i.host != nil {
		return nil // who starts it ends it, too
	}
	if err := i.stop(ctx); err != nil && i.started == nil {
		return err
	}
	if i.started == nil {
		return nil
	}
	// It may not have come as far as the directory, or hang.
	if err := i.started.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", i.started.Pid, err)
	}
	<-i.gone
	return nil
}
