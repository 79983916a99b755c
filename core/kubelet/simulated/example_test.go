// SPDX-License-Identifier: Apache-2.0

package simulated_test

import (
	"context"
	"fmt"
	"net/netip"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/simulated"
)

// An engine runs containers in sandboxes, as the CRI has them. The simulated one runs no
// processes, and keeps the same contract as containerd's adapter.
func ExampleEngine() {
	ctx := context.Background()
	network, err := simulated.NewNetwork(netip.MustParsePrefix("10.1.0.0/24"))
	if err != nil {
		fmt.Println(err)
		return
	}
	node, err := simulated.New(simulated.Config{Network: network})
	if err != nil {
		fmt.Println(err)
		return
	}
	var e engine.Engine = node
	config := &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u1"}}
	sandbox, err := e.RunSandbox(ctx, config, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	container, err := e.CreateContainer(ctx, sandbox, &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "server"}, Image: &cri.ImageSpec{Image: "example.com/server:1"},
	}, config)
	if err != nil {
		fmt.Println(err)
		return
	}
	show := func(err error) {
		if err == nil {
			st, failed := e.ContainerStatus(ctx, container)
			fmt.Println(st.GetState(), failed)
			return
		}
		fmt.Println(err)
	}
	show(nil)
	show(e.StartContainer(ctx, container))
	show(e.StopSandbox(ctx, sandbox)) // ends what runs in it
	fmt.Println(e.RemoveSandbox(ctx, sandbox), e.RemoveSandbox(ctx, sandbox))
	// Output:
	// CONTAINER_CREATED <nil>
	// CONTAINER_RUNNING <nil>
	// CONTAINER_EXITED <nil>
	// <nil> <nil>
}
