// SPDX-License-Identifier: Apache-2.0

package reconcilehost

import (
	"testing"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/reconcilertest"
)

// The reconciler that the tests of this package use keeps the contract too.
func TestTheTestsReconcilerKeepsTheContract(t *testing.T) {
	create := func(*testing.T) controllers.Reconciler { return &exposer{name: "exposer"} }
	reconcilertest.Run(t, create, deployment("web", map[string]any{"expose": "80"}))
}
