// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"os"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/author/cases"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

// TestWorlds: plugins that generators of others have made of sdk/wit pass the same cases at admission, at the node table and as
// reconcilers. The generators that are quick to install are tested always, the others by `make worlds-examples`.
func TestWorlds(t *testing.T) {
	list, err := cases.Read("worlds", nil)
	if err != nil {
		t.Fatal(err)
	}
	e, err := manifest.ParseBytes([]byte("name: team\nsource: file:team.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	generators := []string{"javascript", "python"}
	if os.Getenv("WASMPLANE_ALL_WORLDS") != "" {
		generators = append(generators, "rust", "starlingmonkey")
	}
	for _, g := range generators {
		t.Run(g, func(t *testing.T) { passes(t, e, plugintest.Example(t, "worlds/"+g), list) })
	}
}
