// SPDX-License-Identifier: Apache-2.0

package bytejoin_test

import (
	"bytes"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/component/bytejoin"
)

func TestJoin(t *testing.T) {
	got := bytejoin.Join(byte(7), 5, 300, "ab", "", []byte{1, 2})
	if want := []byte{7, 5, 0xac, 0x02, 2, 'a', 'b', 0, 1, 2}; !bytes.Equal(got, want) {
		t.Errorf("% x, want % x", got, want)
	}
}
