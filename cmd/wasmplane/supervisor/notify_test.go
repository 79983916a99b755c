// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/wasmplane/wasmplane/core/run"
)

// manager is a socket as systemd's, and what was sent to it.
func manager(t *testing.T) (lines <-chan string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan string, 1000)
	reading := run.Go("reader", func() error {
		defer close(heard)
		for b := make([]byte, 256); ; {
			n, err := socket.Read(b)
			if err != nil {
				return err
			}
			heard <- string(b[:n])
		}
	})
	t.Cleanup(func() {
		_ = socket.Close()
		<-reading
	})
	t.Setenv("NOTIFY_SOCKET", path)
	return heard
}

func caller(t *testing.T) *Caller {
	t.Helper()
	c, err := TakeCaller()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if _, there := os.LookupEnv(name); there {
			t.Errorf("children would inherit %s, and could speak for this process", name)
		}
	}
	return c
}

func TestTheServiceManagerHearsHowTheProcessIs(t *testing.T) {
	heard := manager(t)
	t.Setenv("WATCHDOG_USEC", "30000") // 30 ms: fed every 10
	c := caller(t)
	if err := c.Ready(); err != nil {
		t.Fatal(err)
	}
	if got := <-heard; got != "READY=1" {
		t.Fatalf("first it was sent %q", got)
	}
	well, asked := 0, make(chan int) // it is well three times, and then never more
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.Start(ctx, func(context.Context) error {
		well++
		select {
		case asked <- well:
		case <-ctx.Done():
		}
		if well > 3 {
			return errors.New("ill")
		}
		return nil
	}, slog.New(slog.DiscardHandler))
	for <-asked < 8 {
	}
	cancel()
	c.Close()
	for _, want := range []string{"WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1", "STOPPING=1"} {
		if got := <-heard; got != want {
			t.Errorf("a process that was well three times sent %q, expected %q", got, want)
		}
	}
}

// A check that hangs is as good as one that fails.
func TestACheckThatHangsFeedsNobody(t *testing.T) {
	heard := manager(t)
	t.Setenv("WATCHDOG_USEC", "30000")
	c := caller(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hung := make(chan struct{}, 1000)
	c.Start(ctx, func(ctx context.Context) error {
		<-ctx.Done()
		hung <- struct{}{}
		return ctx.Err()
	}, slog.New(slog.DiscardHandler))
	for range 3 {
		<-hung
	}
	cancel()
	c.Close()
	if got := <-heard; got != "STOPPING=1" {
		t.Errorf("a process that hangs sent %q", got)
	}
}

func TestWithoutAServiceManagerNothingIsSent(t *testing.T) {
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		t.Setenv(name, "")
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	c := caller(t)
	if err := c.Ready(); err != nil {
		t.Error(err)
	}
	c.Start(t.Context(), nil, slog.New(slog.DiscardHandler))
	c.Close()
}
