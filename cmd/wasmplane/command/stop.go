// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
)

func (a *app) stop() *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:   "stop",
		Short: "Stop the control plane and leave pods running",
		Args:  shell.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := s.Dir()
			if err != nil {
				return err
			}
			stopped, err := stopInstance(c.Context(), dir)
			if err != nil {
				return err
			}
			if !stopped {
				fmt.Fprintln(a.Out, "Nothing runs in", dir)
			}
			return nil
		},
	}
	s.Access = a.DataDir(c.Flags())
	return c
}

// stopInstance ends the process that has the directory, and waits until it has ended:
// it gives up the directory a little before.
func stopInstance(ctx context.Context, dir datadir.Dir) (bool, error) {
	if !dir.Exists() {
		return false, nil
	}
	owners, err := owners(dir)
	if err != nil || len(owners) == 0 {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var ends []func(context.Context) error
	for _, pid := range owners {
		end, err := interrupt(pid)
		if err != nil {
			return false, fmt.Errorf("stop process %d: %w", pid, err)
		}
		ends = append(ends, end)
	}
	err = dir.AwaitRelease(ctx.Done())
	for _, end := range ends {
		if err == nil {
			err = end(ctx)
		}
	}
	return true, err
}

// interrupt asks a process to end; await waits until it has.
func interrupt(pid int) (await func(context.Context) error, err error) {
	gone := func(context.Context) error { return nil }
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return gone, nil
	}
	if err != nil {
		return nil, err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGINT, nil, 0); err != nil {
		_ = unix.Close(fd)
		if errors.Is(err, unix.ESRCH) {
			return gone, nil
		}
		return nil, err
	}
	return func(ctx context.Context) error {
		defer func() { _ = unix.Close(fd) }()
		for {
			// A pidfd becomes readable when its process ends.
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
			if n > 0 {
				return nil
			}
			if err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			if ctx.Err() != nil {
				return fmt.Errorf("process %d has given up its data and has not ended: end it with kill -9 %[1]d", pid)
			}
		}
	}, nil
}

// owners are the processes that work in the directory, that of the node first.
func owners(dir datadir.Dir) ([]int, error) {
	node, err := dir.NodeOwner()
	if err != nil {
		return nil, err
	}
	pid, err := dir.Owner()
	found := []int{node, pid}
	if node == pid {
		found = found[1:]
	}
	return slices.DeleteFunc(found, func(pid int) bool { return pid == 0 }), err
}
