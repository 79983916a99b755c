// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/wasmplane/wasmplane/core/object"
)

func TestDepthIsBounded(t *testing.T) {
	deep := append(bytes.Repeat([]byte(`{"a":[`), 300), bytes.Repeat([]byte(`]}`), 300)...)
	if err := checkDepth(deep, object.JSON); err == nil {
		t.Error("600 levels passed")
	}
	quoted, err := json.Marshal(map[string]string{"text": string(bytes.Repeat([]byte(`[\"`), 2000))})
	if err != nil {
		t.Fatal(err)
	}
	if err := checkDepth(quoted, object.JSON); err != nil {
		t.Errorf("brackets in a text were counted: %v", err)
	}
}
