// SPDX-License-Identifier: Apache-2.0

package inspection_test

import (
	"testing"

	"github.com/wasmplane/wasmplane/plugins/author/authortest"
	"github.com/wasmplane/wasmplane/plugins/author/inspection"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

func TestInspectSaysWhatAModuleIs(t *testing.T) {
	cfg := authortest.Build(t, toolchain.C, "scheduling.table")
	about, err := inspection.Inspect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if about.Name != "my-own" || about.ABI != "wasmplane" || len(about.Hooks) != 1 || len(about.Hooks[0].Columns) != 2 || about.Problem != "" {
		t.Errorf("%+v", about)
	}
}
