// SPDX-License-Identifier: Apache-2.0

package simulated_test

import (
	"testing"

	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/hosttest"
	"github.com/wasmplane/wasmplane/core/kubelet/simulated"
)

func TestASimulatedMachineKeepsTheContract(t *testing.T) {
	hosttest.Run(t, func(*testing.T) kubelet.Host {
		return simulated.NewHost(simulated.HostConfig{Name: "n", Address: "192.0.2.1"})
	}, hosttest.Options{})
}
