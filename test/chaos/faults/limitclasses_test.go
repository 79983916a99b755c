// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// limitClasses are what one machine runs out of besides its disk, and what around it is gone or is another.
func limitClasses() []class {
	outage := bounds{failed: unbounded, writes: down, goesOn: down}
	return []class{
		{
			"files-used-up", "the only server may open no file more than it has open, for 8 s", alone, false, filesUsedUp,
			// Who is connected stays so; whoever comes new is let in when it is over.
			bounds{goesOn: stop + usualGoesOn},
		},
		{"memory-used-up", "the only server gets no more memory than it has, for 8 s: it bears that, or is killed and started again", alone, false, memoryUsedUp, outage},
		{
			"disk-slow", "each write of the disk waits for 400 ms of every 500, for 8 s", alone, false,
			func(w *world) error { return w.slowDisk(w.first()) },
			bounds{},
		},
		{
			"store-leader-disk-slow", "each write of the disk of the server whose store leads waits for 400 ms of every 500, for 8 s", many, false,
			func(w *world) error {
				m, err := storeLeader(w)
				if err != nil {
					return err
				}
				return w.slowDisk(m)
			},
			bounds{},
		},
		{"resolver-gone", "the resolver for names outside the cluster is gone for 8 s", alone, false, resolverGone, bounds{}},
		{
			"node-renamed", "the only server is ended and started under another node's name, the old node is deleted; and back again", alone, false, nodeRenamed,
			bounds{failed: unbounded, writes: down, goesOn: 2 * down, calls: unbounded, service: 60 * time.Second, restarts: replicas},
		},
	}
}

// filesUsedUp lowers the limit to the files that are open. A number that is closed may be used again.
func filesUsedUp(w *world) error {
	m := w.first()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.process.PID()))
	if err != nil {
		return err
	}
	var was unix.Rlimit
	if err := unix.Prlimit(m.process.PID(), unix.RLIMIT_NOFILE, nil, &was); err != nil {
		return err
	}
	less := was
	less.Cur = uint64(len(open))
	if err := unix.Prlimit(m.process.PID(), unix.RLIMIT_NOFILE, &less, nil); err != nil {
		return err
	}
	w.hold(stop)
	select {
	case <-m.process.Done():
		return errors.Join(errors.New("it ended"), m.printed("too many open files"), m.start())
	default:
		return unix.Prlimit(m.process.PID(), unix.RLIMIT_NOFILE, &was, nil)
	}
}

// memoryUsedUp puts the server into a control group that may have as much as it takes already.
func memoryUsedUp(w *world) error {
	m := w.first()
	root, usage, limit := "/sys/fs/cgroup", "memory.current", "memory.max"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		root, usage, limit = "/sys/fs/cgroup/memory", "memory.usage_in_bytes", "memory.limit_in_bytes"
	} else if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
		return err
	}
	group := filepath.Join(root, "faults-"+w.names)
	if err := os.Mkdir(group, 0o755); err != nil {
		return err
	}
	// What it took before counts too, where the kernel can move that (not with version 2).
	_ = os.WriteFile(filepath.Join(group, "memory.move_charge_at_immigrate"), []byte("1"), 0)
	join := func(group string) error {
		return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(m.process.PID())), 0)
	}
	err := join(group)
	if err == nil {
		var taken []byte
		if taken, err = os.ReadFile(filepath.Join(group, usage)); err == nil {
			var n int64
			n, err = strconv.ParseInt(string(bytes.TrimSpace(taken)), 10, 64)
			err = errors.Join(err, os.WriteFile(filepath.Join(group, limit), fmt.Append(nil, n+1<<20), 0))
		}
	}
	select {
	case <-m.process.Done():
		err = errors.Join(err, m.start())
	case <-time.After(stop):
		err = errors.Join(err, join(root))
	}
	return errors.Join(err, harness.Poll(w.ctx, 50*time.Millisecond, func() error { return os.Remove(group) }))
}

// slowDisk has a disk stall over and over.
func (w *world) slowDisk(m *machine) error {
	var problems []error
	for until := time.Now().Add(stop); time.Now().Before(until); {
		problems = append(problems, w.frozen(m, 400*time.Millisecond))
		w.hold(100 * time.Millisecond)
	}
	return errors.Join(problems...)
}

// nodeRenamed is what an administrator does who has named a machine anew.
func nodeRenamed(w *world) error {
	m := w.first()
	rename := func(to string) error {
		was := m.node
		m.node = to
		err := errors.Join(m.process.End(os.Interrupt), m.start())
		return errors.Join(err, m.kube.CoreV1().Nodes().Delete(w.ctx, was, metav1.DeleteOptions{}))
	}
	return errors.Join(rename(m.name+"-renamed"), w.onlyOn(m), rename(m.name), w.onlyOn(m))
}

// onlyOn waits until all pods of the Service are on a machine's node, and no others run there.
func (w *world) onlyOn(m *machine) error {
	deadline := time.Now().Add(recoversWithin)
	return harness.Poll(w.ctx, 200*time.Millisecond, func() error {
		err := w.runsAlone(m)
		if err != nil && time.Now().After(deadline) {
			w.t.Errorf("node %s: %v", m.node, err)
			return nil
		}
		return err
	})
}

func (w *world) runsAlone(m *machine) error {
	pods, err := m.kube.CoreV1().Pods(w.names).List(w.ctx, metav1.ListOptions{LabelSelector: "app=" + web})
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName != m.node {
			return fmt.Errorf("pod %s is on node %s", pods.Items[i].Name, pods.Items[i].Spec.NodeName)
		}
		known[pods.Items[i].Name] = true
	}
	if err := w.pods(w.ctx, m.kube); err != nil {
		return err
	}
	running := m.processes("containerd-shim-runc-v2")
	if len(running) > len(known) {
		return fmt.Errorf("%d shims run for pods %s", len(running), strings.Join(keys(known), ", "))
	}
	return nil
}

func keys(of map[string]bool) (out []string) {
	for k := range of {
		out = append(out, k)
	}
	return out
}
