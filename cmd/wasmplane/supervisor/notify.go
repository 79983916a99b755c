// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/wasmplane/wasmplane/core/run"
)

// Caller is the service manager that has started this process. One that is nobody is
// sent nothing.
type Caller struct {
	socket string
	feed   time.Duration // how often it wants to hear of us; 0 = not at all

	tasks run.Tasks
	end   context.CancelFunc // of tasks
}

// TakeCaller reads from the environment who has started this process, and takes it out of
// there: no child may speak for us.
func TakeCaller() (*Caller, error) {
	interval, err := daemon.SdWatchdogEnabled(true)
	if err != nil {
		return nil, fmt.Errorf("read how often the service manager wants to hear of this process: %w", err)
	}
	c := &Caller{socket: os.Getenv("NOTIFY_SOCKET"), feed: interval / 3, end: func() {}}
	return c, os.Unsetenv("NOTIFY_SOCKET")
}

// Ready ends the waiting of a service manager for the process's start.
func (c *Caller) Ready() error { return c.send(daemon.SdNotifyReady) }

// Start begins to say that the process is healthy, for as long as healthy finds it so, which is
// given a third of the time until the service manager kills us. At ctx's end it says that the
// process stops. Close waits for that.
func (c *Caller) Start(ctx context.Context, healthy func(context.Context) error, log *slog.Logger) {
	ctx, c.end = context.WithCancel(ctx)
	c.tasks.Go("service manager", func() { c.work(ctx, healthy, log) })
}

// Close ends what Start has begun.
func (c *Caller) Close() {
	c.end()
	c.tasks.Wait()
}

func (c *Caller) work(ctx context.Context, healthy func(context.Context) error, log *slog.Logger) {
	if c.socket == "" {
		return
	}
	for c.feed > 0 && run.Sleep(ctx, c.feed) {
		if err := c.feedOnce(ctx, healthy); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "this process does not answer itself; a service manager that hears nothing better starts it anew", "error", err)
		}
	}
	<-ctx.Done()
	if err := c.send(daemon.SdNotifyStopping); err != nil {
		log.WarnContext(ctx, "the service manager was not told that this process stops", "error", err)
	}
}

func (c *Caller) feedOnce(ctx context.Context, healthy func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.feed)
	defer cancel()
	if healthy != nil {
		if err := healthy(ctx); err != nil {
			return err
		}
	}
	return c.send(daemon.SdNotifyWatchdog)
}

// send sends a line to the service manager (sd_notify(3)).
func (c *Caller) send(state string) error {
	if c.socket == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: c.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("reach the service manager: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("write to the service manager: %w", err)
	}
	return nil
}
