// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"slices"
	"testing"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/plugins/abi"
)

// A point that no part of a cluster asks at would never be asked; one that two parts ask
// at would be asked twice.
func TestEveryPointBelongsToOnePartOfACluster(t *testing.T) {
	var asked []abi.Point
	for _, p := range append(clients(), parts.apiserver) {
		asked = append(asked, p.asks()...)
	}
	want := abi.Points()
	slices.Sort(asked)
	if slices.Sort(want); !slices.Equal(asked, want) {
		t.Errorf("asked at %v, the points are %v", asked, want)
	}
}

func TestNoTwoPartsShareAnIdentity(t *testing.T) {
	c := config.Default()
	c.Node.Name = "here"
	seen := map[string]string{}
	for _, p := range clients() {
		id := p.identity(c)
		if other, taken := seen[id.User]; taken || id.User == "" {
			t.Errorf("%s and %s work as %q", p.name, other, id.User)
		}
		seen[id.User] = p.name
	}
}
