// SPDX-License-Identifier: Apache-2.0

package wasmplane_test

import (
	"fmt"
	"strings"

	wasmplane "github.com/wasmplane/wasmplane/sdk/go"
)

// A plugin is a value that is registered while the package is initialised. The host
// learns its hooks, and the fields that each of them reads, before the first call.
func ExampleRegister() {
	wasmplane.Register(wasmplane.Plugin{
		Name: "no-latest",
		Validate: &wasmplane.Admission{
			Match:  []wasmplane.Rule{wasmplane.Resources("pods").On("CREATE")},
			Fields: []string{"object.spec.containers[*].image"},
			Decide: func(in wasmplane.Input, out *wasmplane.Decision) {
				for _, image := range in.Get("object.spec.containers[*].image").Strings() {
					if strings.HasSuffix(image, ":latest") {
						out.Deny(image + ": name a version")
					}
				}
			},
		},
	})
	manifest, err := wasmplane.ParseJSON(wasmplane.Describe())
	if err != nil {
		fmt.Println(err)
		return
	}
	hook := manifest.Get("hooks").At(0)
	fmt.Println(manifest.Get("name").String(), "takes part in", hook.Get("point").String())
	fmt.Println("and reads", hook.Get("fields").Strings())
	// Output:
	// no-latest takes part in admission.validate
	// and reads [object.spec.containers[*].image]
}

// Settings, and what host functions answer, are JSON.
func ExampleParseJSON() {
	settings, err := wasmplane.ParseJSON([]byte(`{"registries": ["example.com", "registry.example.com"], "strict": true}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(settings.Get("registries").Strings(), settings.Get("strict").Bool(), settings.Get("absent").Exists())
	// Output: [example.com registry.example.com] true false
}
