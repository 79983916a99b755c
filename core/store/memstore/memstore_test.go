// SPDX-License-Identifier: Apache-2.0

package memstore_test

import (
	"testing"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/memstore"
	"github.com/wasmplane/wasmplane/core/store/storetest"
)

func TestContract(t *testing.T) {
	storetest.Run(t, func(*testing.T) store.Store { return memstore.New() })
}
