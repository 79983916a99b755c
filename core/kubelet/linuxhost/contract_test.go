// SPDX-License-Identifier: Apache-2.0

package linuxhost_test

import (
	"testing"

	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/hosttest"
)

func TestALinuxMachineKeepsTheContract(t *testing.T) {
	hosttest.Run(t, func(t *testing.T) kubelet.Host {
		h, _ := newHost(t)
		return h
	}, hosttest.Options{Occupies: true})
}
