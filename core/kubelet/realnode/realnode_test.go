// SPDX-License-Identifier: Apache-2.0

package realnode_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/realnode/nodetest"
)

func TestMain(m *testing.M) {
	if encoded := os.Getenv(parentVariable); encoded != "" && os.Getenv("WASMPLANE_CONTAINERD_ROLE") == "" {
		os.Exit(parent(context.Background(), encoded))
	}
	os.Exit(nodetest.Main(m))
}

// A pod's whole life on a real node: sandbox with an address, container, exec, log,
// the stop, and nothing left behind.
func TestPodLifecycle(t *testing.T) {
	node := nodetest.Start(t)
	ctx, e := t.Context(), node.Engine()
	if err := e.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	sandbox, container := node.Run(t, "web", "serve", ":80")
	ip := node.IP(t, sandbox)
	if !nodetest.PodCIDR(node.Config.Cluster).Contains(ip) {
		t.Errorf("the pod's address %s is not of the node's range", ip)
	}
	if out, code := node.Exec(t, container, "fetch", "http://127.0.0.1/hi"); code != 0 || !strings.HasPrefix(out, "web /hi") {
		t.Errorf("fetch in the container: exit code %d, %q", code, out)
	}
	if out, code := node.Exec(t, container, "fail", "7"); code != 7 {
		t.Errorf("exit code of a failing command is %d: %s", code, out)
	}
	log, err := os.ReadFile(filepath.Join(node.Config.Dir, "pods/web/main.log"))
	if err != nil || !strings.Contains(string(log), "stdout F serving on") {
		t.Errorf("the container's log is %q (%v)", log, err)
	}
	if err := e.StopContainer(ctx, container, 10); err != nil {
		t.Fatal(err)
	}
	st, err := e.ContainerStatus(ctx, container)
	if err != nil {
		t.Fatal(err)
	}
	if st.State != cri.ContainerState_CONTAINER_EXITED || st.ExitCode != 0 {
		t.Errorf("after the stop the container is %v with exit code %d", st.State, st.ExitCode)
	}
	if err := e.StopSandbox(ctx, sandbox); err != nil {
		t.Fatal(err)
	}
	if err := e.RemoveSandbox(ctx, sandbox); err != nil {
		t.Fatal(err)
	}
	left, err := e.ListContainers(ctx)
	if err != nil || len(left) != 0 {
		t.Errorf("%d containers are left (%v)", len(left), err)
	}
}
