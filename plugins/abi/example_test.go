// SPDX-License-Identifier: Apache-2.0

package abi_test

import (
	"encoding/json"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/abi"
)

// A module says in its manifest what it is asked about and what it reads. Its answer is checked against that, and a patch
// is applied to the object with the comforts of PatchOp: what is missing on the way is made.
func ExampleHook_Patch() {
	manifest, err := abi.ParseManifest([]byte(`{"abi": 1, "name": "team", "version": "1.0.0", "hooks": [
		{"op": 1, "point": "admission.mutate", "fields": ["object.metadata.labels"]}]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	hook := &manifest.Hooks[0]
	answer, err := abi.ParseAdmission([]byte(`{"patch": [{"op": "add", "path": "/metadata/labels/team", "value": "blue"}]}`), hook)
	if err != nil {
		fmt.Println(err)
		return
	}
	patched, err := hook.Patch(map[string]any{"kind": "Pod", "metadata": map[string]any{"name": "web"}}, "Pod", answer.Patch)
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := json.Marshal(patched)
	fmt.Println(string(text), err)

	_, err = abi.ParseAdmission([]byte(`{"allowed": "no"}`), hook)
	fmt.Println(err != nil)
	// Output:
	// {"kind":"Pod","metadata":{"labels":{"team":"blue"},"name":"web"}} <nil>
	// true
}
