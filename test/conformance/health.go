// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// part is a process that the cluster consists of.
type part struct {
	name, log string
	cmd       *exec.Cmd
	done      chan struct{} // closed when it ended; err says how
	err       error
}

// startPart starts a process that outlives ctx, and us where the cluster is kept.
func startPart(ctx context.Context, name, log, program string, args ...string) (*part, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, args...)
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &part{name: name, log: log, cmd: cmd, done: make(chan struct{})}
	go func() { // ends with the process
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// ended says how a process ended, with what it said last.
func (p *part) ended() error {
	said, _ := os.ReadFile(p.log)
	how := "without an error"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s ended (%s); its output is in %s, which ends:\n%s", p.name, how, p.log, harness.Tail(string(said), 10))
}

// interrupt ends a process, and kills it where it takes too long.
func (p *part) interrupt(within time.Duration) {
	_ = p.cmd.Process.Signal(os.Interrupt)
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// health is what tests need of a cluster besides its answers: its processes live,
// its nodes are ready. Without it every test that follows would only run into its
// time limit.
type health struct {
	parts []*part
	// ready asks for what is wrong with the nodes.
	ready func(context.Context) error
	// every is how often it asks, patience for how long the answer may be bad.
	every, patience time.Duration
}

// watch waits until the cluster is broken, and says how. It answers nil when ctx ends.
func (h health) watch(ctx context.Context) error {
	died := make(chan *part, len(h.parts))
	for _, p := range h.parts {
		go func() { // ends with the process, or with ctx
			select {
			case <-p.done:
				died <- p
			case <-ctx.Done():
			}
		}()
	}
	tick := time.NewTicker(h.every)
	defer tick.Stop()
	good := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case p := <-died:
			return p.ended()
		case <-tick.C:
		}
		err := h.ready(ctx)
		if err == nil {
			good = time.Now()
		} else if ctx.Err() == nil && time.Since(good) > h.patience {
			return fmt.Errorf("for %s the cluster has not been well: %w", h.patience, err)
		}
	}
}

// guard runs work with a context that ends when the cluster breaks, and then says
// how it broke.
func (h health) guard(ctx context.Context, work func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() { // ends with the work
		defer close(watched)
		if err := h.watch(ctx); err != nil {
			cancel(fmt.Errorf("the cluster broke while tests ran: %w", err))
		}
	}()
	err := work(ctx)
	broke := context.Cause(ctx)
	cancel(nil)
	<-watched
	if broke != nil && !errors.Is(broke, context.Canceled) && !errors.Is(broke, context.DeadlineExceeded) {
		return broke
	}
	return err
}

// nodesReady is nil where the cluster's nodes say that they are ready. Nodes that tests
// made for themselves don't matter.
func (c *cluster) nodesReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := command(ctx, c.wasmplane, "kubectl", "--kubeconfig", c.kubeconfig(), "get", "nodes", "-o", "json")
	if err != nil {
		return err
	}
	s, err := c.state()
	if err != nil {
		return err
	}
	names := []string{s.text("nodeName"), secondName}
	return notReady([]byte(out), names[:c.nodes]...)
}

// notReady says which of the named nodes are missing in a list, or not ready.
func notReady(list []byte, names ...string) error {
	var nodes struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct {
				Conditions []struct{ Type, Status, Message string }
			}
		}
	}
	if err := json.Unmarshal(list, &nodes); err != nil {
		return fmt.Errorf("read the list of nodes: %w", err)
	}
	said := map[string]string{}
	for _, n := range nodes.Items {
		said[n.Metadata.Name] = "it says nothing of being ready"
		for _, c := range n.Status.Conditions {
			if c.Type == "Ready" {
				said[n.Metadata.Name] = strings.TrimSpace(c.Status + " " + c.Message)
			}
		}
	}
	var bad []error
	for _, name := range names {
		if s, ok := said[name]; !ok {
			bad = append(bad, fmt.Errorf("there is no node %q", name))
		} else if !strings.HasPrefix(s, "True") {
			bad = append(bad, fmt.Errorf("node %q is not ready: %s", name, s))
		}
	}
	return errors.Join(bad...)
}
