// SPDX-License-Identifier: Apache-2.0

package realnode_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/containerd"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode/nodetest"
)

// containerd is killed while pods are being made, at several moments. What is
// there afterwards can all be removed, and new pods start.
func TestKilledInTheMiddle(t *testing.T) {
	cfg := nodetest.Config(t)
	node := nodetest.StartWith(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	supervised := make(chan error, 1)
	go func() { supervised <- node.Node.Run(ctx) }()
	defer func() { cancel(); <-supervised }()
	e := node.Engine()
	for round := range 4 {
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				s := node.Sandbox(fmt.Sprintf("pod-%d-%d", round, i))
				id, err := e.RunSandbox(ctx, s, "")
				if err != nil {
					return
				}
				if c, err := e.CreateContainer(ctx, id, nodetest.Container("main", "serve", ":80"), s); err == nil {
					_ = e.StartContainer(ctx, c)
				}
			})
		}
		pid := containerd.Running(containerd.Config{Dir: cfg.Dir})
		kill := time.AfterFunc(time.Duration(150*round+50)*time.Millisecond, func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
		wg.Wait()
		kill.Stop()
		t.Logf("round %d: containerd is killed", round)
		_ = syscall.Kill(pid, syscall.SIGKILL)
		nodetest.Eventually(t, "containerd runs again", func() bool {
			now := containerd.Running(containerd.Config{Dir: cfg.Dir})
			return now != 0 && now != pid && e.Ready(ctx) == nil
		})
		t.Logf("round %d: containerd runs again", round)
		removeAll(t, node)
	}
	// A containerd that died between a snapshot's directory and its record refuses the next snapshot once,
	// and removes the directory: the kubelet tries again.
	nodetest.Eventually(t, "a new pod starts", func() bool {
		s := node.Sandbox("after")
		id, err := e.RunSandbox(ctx, s, "")
		if err != nil {
			t.Logf("a new pod's sandbox: %v", err)
			return false
		}
		c, err := e.CreateContainer(ctx, id, nodetest.Container("main", "serve", ":80"), s)
		if err == nil {
			err = e.StartContainer(ctx, c)
		}
		if err != nil {
			t.Logf("a new pod's container: %v", err)
			removeAll(t, node)
		}
		return err == nil
	})
	removeAll(t, node)
	if left, _ := filepath.Glob(filepath.Join(cfg.Dir, "net/addresses/*/10.*")); len(left) > 0 {
		t.Errorf("addresses are lost: %v", left)
	}
	mounts, err := linuxhost.MountsBelow(filepath.Join(cfg.Dir, "run"))
	if err != nil || len(mounts) > 0 {
		t.Errorf("mounts are left: %v (%v)", mounts, err)
	}
	// A shim ends by itself, a moment after its sandbox is removed.
	nodetest.Eventually(t, "no process of the pods and no shim is left", func() bool {
		pids, err := linuxhost.CgroupProcesses(node.Names().PodsCgroup())
		return err == nil && len(pids) == 0 && len(linuxhost.ProgramsBelow(filepath.Join(cfg.Dir, "bin"))) == 0
	})
}

// containerd is killed after it has recorded a sandbox and before it has recorded how
// to reach the sandbox's shim. The next one knows the sandbox and not the shim, which
// must not stay for ever.
func TestAShimWithoutARecordEnds(t *testing.T) {
	cfg := nodetest.Config(t)
	node := nodetest.StartWith(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	supervised := make(chan error, 1)
	go func() { supervised <- node.Node.Run(ctx) }()
	defer func() { cancel(); <-supervised }()
	e := node.Engine()
	id, err := e.RunSandbox(ctx, node.Sandbox("alone"), "")
	if err != nil {
		t.Fatal(err)
	}
	shims := linuxhost.ProgramsBelow(filepath.Join(cfg.Dir, "bin"))
	if len(shims) != 1 {
		t.Fatalf("shims of one sandbox: %v", shims)
	}
	proc := fmt.Sprintf("/proc/%d", shims[0])
	bundle, err := os.Readlink(proc + "/cwd")
	if err != nil {
		t.Fatal(err)
	}
	pid := containerd.Running(containerd.Config{Dir: cfg.Dir})
	for _, step := range []error{
		syscall.Kill(pid, syscall.SIGSTOP), // it notices nothing of what follows
		os.Remove(filepath.Join(bundle, "bootstrap.json")),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	processes, err := linuxhost.CgroupProcesses(node.Names().PodsCgroup())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if p != shims[0] {
			_ = syscall.Kill(p, syscall.SIGKILL)
		}
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	nodetest.Eventually(t, "containerd runs again", func() bool {
		now := containerd.Running(containerd.Config{Dir: cfg.Dir})
		return now != 0 && now != pid && e.Ready(ctx) == nil
	})
	list, err := e.ListSandboxes(ctx)
	if err != nil || len(list) != 1 || list[0].Id != id || list[0].State != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Fatalf("sandboxes: %v (%v), want %s, not ready", list, err, id)
	}
	nodetest.Eventually(t, "the shim ends", func() bool {
		return len(linuxhost.ProgramsBelow(filepath.Join(cfg.Dir, "bin"))) == 0
	})
	removeAll(t, node)
}

// removeAll removes every sandbox, as the kubelet does with those it does not know.
func removeAll(t *testing.T, node *nodetest.Node) {
	t.Helper()
	e := node.Engine()
	nodetest.Eventually(t, "all sandboxes are removed", func() bool {
		list, err := e.ListSandboxes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			if err := e.StopSandbox(t.Context(), s.Id); err != nil {
				t.Logf("%v", err)
				continue
			}
			if err := e.RemoveSandbox(t.Context(), s.Id); err != nil && !strings.Contains(err.Error(), "not found") {
				t.Logf("%v", err)
			}
		}
		return len(list) == 0
	})
}
