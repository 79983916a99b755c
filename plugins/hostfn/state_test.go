// SPDX-License-Identifier: Apache-2.0

package hostfn_test

import (
	"testing"

	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/hostfn/statetest"
)

// The fake that the tests of this package use keeps the contract too.
func TestTheFakeStateStoreKeepsTheContract(t *testing.T) {
	statetest.Run(t, func(*testing.T) statetest.Opener {
		d := &drawer{values: map[string]map[string][]byte{}}
		return func() hostfn.StateStore { return d }
	})
}
