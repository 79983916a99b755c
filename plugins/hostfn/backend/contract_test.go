// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"testing"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/hostfn/statetest"
)

func TestFileStateKeepsTheContract(t *testing.T) {
	statetest.Run(t, func(t *testing.T) statetest.Opener {
		dir := t.TempDir()
		return func() hostfn.StateStore { return &FileState{Dir: dir} }
	})
}

func TestConfigMapStateKeepsTheContract(t *testing.T) {
	statetest.Run(t, func(*testing.T) statetest.Opener {
		kube := controllertest.New().Client
		return func() hostfn.StateStore { return ConfigMapState{Kube: kube} }
	})
}
