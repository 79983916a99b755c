// SPDX-License-Identifier: Apache-2.0

package harness_test

import (
	"testing"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// TestNetworksOfClustersThatAreGoneAreUsedAgain: a suite has more clusters than there are networks, but not
// at the same time.
func TestNetworksOfClustersThatAreGoneAreUsedAgain(t *testing.T) {
	var had []string
	for {
		name, err := harness.ClusterName()
		if err != nil {
			break
		}
		if had = append(had, name); len(had) > 1000 {
			t.Fatal("there is no end of networks")
		}
	}
	if len(had) < 10 {
		t.Fatalf("there are %d networks", len(had))
	}
	harness.ReturnName(had[3])
	if name, err := harness.ClusterName(); err != nil || name == had[3] {
		t.Errorf("after the end of one: %q, %v", name, err)
	}
	if name, err := harness.ClusterName(); err == nil {
		t.Errorf("two were given the networks of one: %q", name)
	}
	for _, name := range had {
		harness.ReturnName(name)
	}
}
