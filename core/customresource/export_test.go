// SPDX-License-Identifier: Apache-2.0

package customresource

import (
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/object"
)

// decodeStored reads a value as the watch cache does.
func decodeStored(row *api.Resource, value []byte) (*object.Object, error) {
	o, _, _, err := (&api.Contract{}).WatchDecoder(row)("/registry/example.com/tabs/default/a", value, 1)
	return o, err
}
