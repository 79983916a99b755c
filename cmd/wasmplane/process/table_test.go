// SPDX-License-Identifier: Apache-2.0

package process

import (
	"slices"
	"testing"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/plugins/abi"
)

// A point that no part of a cluster asks at would never be asked; one that two Parts ask
// at would be asked twice.
func TestEveryPointBelongsToOnePartOfACluster(t *testing.T) {
	var asked []abi.Point
	for _, p := range append(Clients(), Parts.APIServer) {
		asked = append(asked, p.Asks()...)
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
	for _, p := range Clients() {
		id := p.Identity(c)
		if other, taken := seen[id.User]; taken || id.User == "" {
			t.Errorf("%s and %s work as %q", p.Name, other, id.User)
		}
		seen[id.User] = p.Name
	}
}
