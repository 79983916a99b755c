// SPDX-License-Identifier: Apache-2.0

package hostfn_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// An entry's grants are the functions that its plugin has, and how far each of them reaches.
func ExampleFunctions_Set() {
	entry, err := manifest.ParseBytes([]byte(`
name: owners
source: file:owners.wasm
grants:
  read:
  - {resources: [pods], namespaces: [blue], fields: [metadata.name]}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	functions := hostfn.New(hostfn.Backend{Objects: someObjects()}).Set(&entry) // someObjects is a cluster of a few objects
	out, err := functions[hostfn.List](context.Background(), []byte(`{"apiVersion": "v1", "resource": "pods", "namespace": "blue"}`))
	fmt.Println(string(out), err)

	_, err = functions[hostfn.List](context.Background(), []byte(`{"apiVersion": "v1", "resource": "pods", "namespace": "red"}`))
	var refused *host.RefusedError
	fmt.Println(errors.As(err, &refused))
	fmt.Println(err)
	_, granted := functions[hostfn.Fetch]
	fmt.Println("https:", granted)
	// Output:
	// {"resourceVersion":"7","more":false,"items":[{"metadata":{"name":"a"}}]} <nil>
	// true
	// plugin "owners" may not read pods in namespace red: grant it with grants.read: [{resources: [pods]}]
	// https: false
}
