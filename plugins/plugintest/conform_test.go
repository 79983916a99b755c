// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"testing"

	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

func TestTheHandWrittenExampleConforms(t *testing.T) {
	e, err := manifest.ParseBytes([]byte("name: no-privileged\nsource: file:plugin.wasm\n"))
	if err != nil {
		t.Fatal(err)
	}
	plugintest.Conform(t, plugintest.Module(t, "no-privileged"), e)
}
