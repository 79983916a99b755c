// SPDX-License-Identifier: Apache-2.0

package realnode_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/engine/enginetest"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode/nodetest"
)

// The CRI adapter over the embedded containerd is an engine like any other.
func TestEngine(t *testing.T) {
	node := nodetest.Start(t)
	enginetest.Run(t, func(*testing.T) engine.Engine { return node.Engine() }, enginetest.Options{
		Image:        nodetest.Image,
		Exit:         func(code int) []string { return []string{"/testprogram", "fail", strconv.Itoa(code)} },
		Shell:        func(script string) []string { return []string{"/testprogram", "sh", script} },
		CgroupParent: node.Names().PodsCgroup() + "/suite",
		LogDir:       t.TempDir(),
		Read: func(path string) (string, error) {
			data, err := os.ReadFile(path)
			return string(data), err
		},
	})
}
