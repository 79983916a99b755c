// SPDX-License-Identifier: Apache-2.0

package realnode_test

import (
	"os"
	"path/filepath"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode/nodetest"
)

// After a power cut the pods are gone and said to be so; what they left can be
// removed, their addresses come back, and new pods start.
func TestReboot(t *testing.T) {
	cfg := nodetest.Config(t)
	node := nodetest.StartWith(t, cfg)
	sandbox, container := node.Run(t, "web", "serve", ":80")
	node.Close()
	if err := linuxhost.KillBelow(t.Context(), node.Names(), []string{cfg.Dir}); err != nil {
		t.Fatal(err)
	}
	if err := linuxhost.UnmountBelow(cfg.Dir); err != nil {
		t.Fatal(err)
	}
	if err := linuxhost.RemoveLinks(node.Names()); err != nil {
		t.Fatal(err)
	}
	if err := linuxhost.RemoveCgroup(node.Names().Cgroup()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cfg.Dir, "run/boot"), []byte("the one before"), 0o600); err != nil {
		t.Fatal(err)
	}

	node = nodetest.StartWith(t, cfg)
	if node.Adopted() {
		t.Error("a containerd of the last boot was adopted")
	}
	e := node.Engine()
	if st, err := e.ContainerStatus(t.Context(), container); err != nil || st.State == cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container is %v (%v)", st.GetState(), err)
	}
	if st, err := e.SandboxStatus(t.Context(), sandbox); err != nil || st.State != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("the sandbox is %v (%v)", st.GetState(), err)
	}
	if err := e.StopSandbox(t.Context(), sandbox); err != nil {
		t.Error(err)
	}
	if err := e.RemoveSandbox(t.Context(), sandbox); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(cfg.Dir, "net/addresses/*/10.*")); len(left) != 0 {
		t.Errorf("addresses are left: %v", left)
	}
	_, _ = node.Run(t, "web", "serve", ":80")
}
