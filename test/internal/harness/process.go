// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// Patience bounds a wait.
	Patience = 2 * time.Minute
	// endsWithin bounds how long a process takes to end when it is asked to.
	endsWithin = 40 * time.Second
)

// Output keeps what a process prints, and wakes who waits for more.
type Output struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{}
}

// Write implements io.Writer.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more != nil {
		close(o.more)
		o.more = nil
	}
	return o.buf.Write(b)
}

// String is everything so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// next is what there is, and a channel that is closed when there is more.
func (o *Output) next() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = make(chan struct{})
	}
	return o.buf.String(), o.more
}

// Tail is the end of a text.
func Tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Process is one that a test started.
type Process struct {
	// Output is what it prints, to standard output and standard error.
	Output Output

	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start starts a process in a group of its own, so that a signal to the test
// doesn't reach it first. Whoever starts it ends it.
func Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.Output, &p.Output
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	heedInterrupts()
	// What a process left behind may hold its output open.
	cmd.WaitDelay = 2 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the process
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// heedInterrupts lets processes that are started be ended by an interrupt. A shell that runs the tests in its background has
// them ignore it, which processes inherit, unlike that a signal is handled.
func heedInterrupts() {
	if signal.Ignored(os.Interrupt) {
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
}

// Run starts a process that ends with the test.
func Run(tb testing.TB, cmd *exec.Cmd) *Process {
	tb.Helper()
	p, err := Start(cmd)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.End(syscall.SIGTERM); err != nil {
			tb.Error(err)
		}
		if tb.Failed() {
			tb.Log(p.last())
		}
	})
	return p
}

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the process ended, once it has.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// AwaitLine waits until what the process prints matches, and answers the match
// with its groups. That the process ends without it is an error.
func (p *Process) AwaitLine(pattern *regexp.Regexp) ([]string, error) {
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	for {
		text, more := p.Output.next()
		if found := pattern.FindStringSubmatch(text); found != nil {
			return found, nil
		}
		select {
		case <-more:
		case <-p.done:
			if found := pattern.FindStringSubmatch(p.Output.String()); found != nil {
				return found, nil
			}
			return nil, errors.Join(fmt.Errorf("it ended and had printed:\n%s", p.Output.String()), p.err)
		case <-deadline.C:
			return nil, fmt.Errorf("no line matches %s within %s; it printed:\n%s", pattern, Patience, text)
		}
	}
}

// End signals the process and waits for its end. One that takes too long is
// killed, which is an error.
func (p *Process) End(sig os.Signal) error {
	_ = p.cmd.Process.Signal(sig)
	_ = p.cmd.Process.Signal(syscall.SIGCONT) // one that a test has stopped, and failed then, would not end
	timer := time.NewTimer(endsWithin)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end within %s of %s, and was killed", filepath.Base(p.cmd.Path), endsWithin, sig)
	}
}

func (p *Process) last() string {
	return fmt.Sprintf("[%s printed last]\n%s", filepath.Base(p.cmd.Path), Tail(p.Output.String(), 60))
}

// Execute runs a command to its end. What it printed is part of the error.
func Execute(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// Poll asks every now and then until check has nothing to complain about: what it
// waits for happens in other processes. When ctx ends first it answers the last
// complaint.
func Poll(ctx context.Context, every time.Duration, check func() error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// Eventually waits until check has nothing to complain about.
func Eventually(tb testing.TB, what string, check func() error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	if err := Poll(ctx, 100*time.Millisecond, check); err != nil {
		tb.Fatalf("waited %s for %s: %v", Patience, what, err)
	}
}
