// SPDX-License-Identifier: Apache-2.0

// Package netlab makes the network namespaces that tests use as machines and pods.
package netlab

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/wasmplane/wasmplane/core/run"
)

// Lab is the namespaces of one test. They are removed when it ends.
type Lab struct {
	tb     testing.TB
	prefix string
}

var labs atomic.Int64

// New makes a lab without namespaces. No two labs have namespaces of one name.
func New(tb testing.TB) Lab {
	tb.Helper()
	return Lab{tb, fmt.Sprintf("wplab%d-%d-", os.Getpid(), labs.Add(1))}
}

// Name is what the host calls a namespace of the lab.
func (l Lab) Name(namespace string) string { return l.prefix + namespace }

// Namespace makes a namespace in which nothing is up but loopback.
func (l Lab) Namespace(name string) {
	l.tb.Helper()
	l.command("ip", "netns", "add", l.Name(name))
	l.tb.Cleanup(func() { _ = exec.Command("ip", "netns", "del", l.Name(name)).Run() })
	l.Run(name, "ip", "link", "set", "lo", "up")
}

// Run runs a command inside a namespace and returns what it printed; a command that fails fails the test.
func (l Lab) Run(namespace string, args ...string) string {
	l.tb.Helper()
	return l.command(append([]string{"ip", "netns", "exec", l.Name(namespace)}, args...)...)
}

// Sysctl writes a setting of the kernel that each namespace has of its own, as sysctl -w does: "net.ipv4.ip_forward". Its name
// has no dots but those between its parts.
func (l Lab) Sysctl(namespace, name, value string) {
	l.tb.Helper()
	err := l.In(namespace, func() error {
		return os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0o644)
	})
	if err != nil {
		l.tb.Fatalf("set %s to %s in %s: %v", name, value, namespace, err)
	}
}

func (l Lab) command(args ...string) string {
	l.tb.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		l.tb.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// In runs f on a thread inside a namespace. The thread is not used again.
func (l Lab) In(namespace string, f func() error) error {
	return <-run.Go("netlab: in "+namespace, func() error {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		h, err := netns.GetFromName(l.Name(namespace))
		if err == nil {
			err = netns.Set(h)
			_ = h.Close()
		}
		if err != nil {
			return err
		}
		return f()
	})
}

// Eventually waits up to a minute for what others bring about.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			tb.Fatalf("still not so: %s", what)
		case <-tick.C:
		}
	}
}
