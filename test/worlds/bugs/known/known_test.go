// SPDX-License-Identifier: Apache-2.0

package known_test

import (
	"testing"

	"github.com/wasmplane/wasmplane/test/worlds/bugs/known"
)

// TestTheBugsFit holds the bugs against the code as it is.
func TestTheBugsFit(t *testing.T) {
	all, err := known.Read("../../testdata/bugs")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("there are none")
	}
	for _, bug := range all {
		if _, err := bug.Applied("../../../.."); err != nil {
			t.Error(err)
		}
	}
}
