// SPDX-License-Identifier: Apache-2.0

package realnode_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode/nodetest"
	"github.com/wasmplane/wasmplane/core/run"
)

// below are the children of a process that run the container runtime with an argument.
func below(pid int, argument string) (out []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, l := range lists {
		data, _ := os.ReadFile(l)
		for _, f := range strings.Fields(string(data)) {
			line, _ := os.ReadFile("/proc/" + f + "/cmdline")
			args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
			if child, err := strconv.Atoi(f); err == nil && strings.HasSuffix(args[0], "runc") && slices.Contains(args[1:], argument) {
				out = append(out, child)
			}
		}
	}
	return out
}

// TestAContainerThatNobodyKnowsIsEnded: its shim made it after containerd had given it up, as
// happens when whoever asked for its start is killed.
func TestAContainerThatNobodyKnowsIsEnded(t *testing.T) {
	cfg := nodetest.Config(t)
	node := nodetest.StartWith(t, cfg)
	_, c := node.Run(t, "cut", "serve", ":80")
	shims := linuxhost.ProgramsBelow(filepath.Join(cfg.Dir, "bin"))
	if len(shims) != 1 {
		t.Fatalf("shims of one sandbox: %v", shims)
	}
	makeStray(t, cfg.Dir, shims[0], c)
	if n := len(below(shims[0], "init")); n != 1 {
		t.Fatalf("%d containers that were made and not started", n)
	}
	ctx, stop := context.WithCancel(t.Context())
	supervised := run.Go("node", func() error { return node.Node.Run(ctx) })
	defer func() { stop(); <-supervised }()
	nodetest.Eventually(t, "the container is ended", func() bool { return len(below(shims[0], "init")) == 0 })
	if st := status(t, node, c); st.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the other container is %s", st.State)
	}
	removeAll(t, node)
	nodetest.Eventually(t, "the shim ends with its sandbox",
		func() bool { return len(linuxhost.ProgramsBelow(filepath.Join(cfg.Dir, "bin"))) == 0 })
}

// makeStray has a shim make a container like another one, without containerd.
func makeStray(t *testing.T, dir string, shim int, like string) {
	t.Helper()
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	bundle := filepath.Join(dir, "run/io.containerd.runtime.v2.task/k8s.io", like)
	spec, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	spec = bytes.ReplaceAll(spec, []byte(like), []byte(id)) // its cgroup
	spec = bytes.Replace(spec, []byte(`"root":{"path":"rootfs"`), []byte(`"root":{"path":"`+filepath.Join(bundle, "rootfs")+`"`), 1)
	own := t.TempDir()
	if err := os.WriteFile(filepath.Join(own, "config.json"), spec, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(own, "rootfs"), 0o700); err != nil {
		t.Fatal(err)
	}
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", shim))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(cwd, "bootstrap.json"))
	if err != nil {
		t.Fatal(err)
	}
	var at struct{ Address string }
	if err := json.Unmarshal(text, &at); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", strings.TrimPrefix(at.Address, "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := task.NewTTRPCTaskClient(client).Create(ctx, &task.CreateTaskRequest{ID: id, Bundle: own}); err != nil {
		t.Fatal(err)
	}
}
