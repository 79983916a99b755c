// SPDX-License-Identifier: Apache-2.0

package realnode_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/containerd"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode/nodetest"
)

// parentVariable makes this test's binary a parent that starts a node and waits.
const parentVariable = "REALNODE_TEST_PARENT"

type parentConfig struct{ Cluster, Dir, Helpers string }

// parent starts a node and stays until it is killed.
func parent(ctx context.Context, encoded string) int {
	var c parentConfig
	if err := json.Unmarshal([]byte(encoded), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	n, err := realnode.Start(ctx, realnode.Config{
		Cluster: c.Cluster, Dir: c.Dir, Containerd: containerd.Config{Helpers: os.DirFS(c.Helpers)},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	_ = n.Run(ctx)
	return 0
}

// startParent starts a process that has the node, and answers when it is ready.
func startParent(t *testing.T, cfg realnode.Config) *exec.Cmd {
	t.Helper()
	encoded, err := json.Marshal(parentConfig{Cluster: cfg.Cluster, Dir: cfg.Dir, Helpers: fmt.Sprint(cfg.Containerd.Helpers)})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), parentVariable+"="+string(encoded))
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the parent says %q (%v)", line, err)
	}
	return cmd
}

// The process that started containerd is killed; the next one finds it, and the
// pod never noticed.
func TestAdoptionAfterKill(t *testing.T) {
	cfg := nodetest.Config(t)
	first := startParent(t, cfg)
	pid := containerd.Running(containerd.Config{Dir: cfg.Dir})
	if pid == 0 {
		t.Fatal("containerd does not run")
	}
	if sid, err := syscall.Getpgid(pid); err != nil || sid != pid {
		t.Errorf("containerd is in process group %d (%v), not in its own: Ctrl-C would reach it", sid, err)
	}
	cgroups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if !strings.Contains(string(cgroups), "/runtime\n") {
		t.Errorf("containerd is in its parent's cgroup:\n%s", cgroups)
	}
	if err := first.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()

	node := nodetest.StartWith(t, cfg)
	if !node.Adopted() || containerd.Running(containerd.Config{Dir: cfg.Dir}) != pid {
		t.Errorf("containerd %d was not adopted", pid)
	}
	_, container := node.Run(t, "web", "serve", ":80")
	before := status(t, node, container)
	node.Close()

	again, err := realnode.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if !again.Adopted() {
		t.Error("containerd was not adopted after a restart in order")
	}
	after := status(t, &nodetest.Node{Node: again, Config: cfg}, container)
	if after.StartedAt != before.StartedAt || after.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container was %v and is %v", before, after)
	}
}

// A containerd of another configuration is replaced, and the pod runs on.
func TestReplacedWhenConfigurationChanges(t *testing.T) {
	cfg := nodetest.Config(t)
	node := nodetest.StartWith(t, cfg)
	_, container := node.Run(t, "web", "serve", ":80")
	before := status(t, node, container)
	pid := containerd.Running(containerd.Config{Dir: cfg.Dir})
	node.Close()

	cfg.Containerd.LogLevel = "debug"
	again, err := realnode.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.Adopted() || containerd.Running(containerd.Config{Dir: cfg.Dir}) == pid {
		t.Error("containerd of another configuration was adopted")
	}
	if after := status(t, &nodetest.Node{Node: again, Config: cfg}, container); after.StartedAt != before.StartedAt {
		t.Errorf("the container was %v and is %v", before, after)
	}
}

// containerd itself is killed: it is started again, the event stream says so by
// ending and can be had anew, and the pod runs on.
func TestContainerdKilled(t *testing.T) {
	cfg := nodetest.Config(t)
	node := nodetest.StartWith(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	supervised := make(chan error, 1)
	go func() { supervised <- node.Node.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-supervised; err != nil {
			t.Error(err)
		}
	}()
	events, err := node.Engine().Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, container := node.RunWith(t, node.Sandbox("web"), nodetest.Container("main", "serve", ":80"))
	waitEvent(t, events, container, cri.ContainerEventType_CONTAINER_STARTED_EVENT)
	before := status(t, node, container)

	pid := containerd.Running(containerd.Config{Dir: cfg.Dir})
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range events { // until the stream ends
	}
	nodetest.Eventually(t, "containerd runs again", func() bool { return node.Engine().Ready(ctx) == nil })
	if now := containerd.Running(containerd.Config{Dir: cfg.Dir}); now == pid || now == 0 {
		t.Errorf("containerd was %d and is %d", pid, now)
	}
	if after := status(t, node, container); after.StartedAt != before.StartedAt || after.State != before.State {
		t.Errorf("the container was %v and is %v", before, after)
	}
	if events, err = node.Engine().Events(ctx); err != nil {
		t.Fatal(err)
	}
	if err := node.Engine().StopContainer(ctx, container, 5); err != nil {
		t.Fatal(err)
	}
	waitEvent(t, events, container, cri.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

func status(t *testing.T, n *nodetest.Node, container string) *cri.ContainerStatus {
	t.Helper()
	st, err := n.Engine().ContainerStatus(t.Context(), container)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func waitEvent(t *testing.T, events <-chan *cri.ContainerEventResponse, id string, kind cri.ContainerEventType) {
	t.Helper()
	patience := time.NewTimer(2 * time.Minute)
	defer patience.Stop()
	for {
		select {
		case ev, open := <-events:
			if !open {
				t.Fatalf("the event stream ended before %v of %s", kind, id)
			}
			if ev.ContainerId == id && ev.ContainerEventType == kind {
				return
			}
		case <-patience.C:
			t.Fatalf("no %v of %s came", kind, id)
		}
	}
}
