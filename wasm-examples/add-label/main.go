// SPDX-License-Identifier: Apache-2.0

// The add-label plugin puts a label on pods that do not have it.
package main

import wasmplane "github.com/wasmplane/wasmplane/sdk/go"

var label, value = "team", "unassigned"

var _ = wasmplane.Register(wasmplane.Plugin{
	Name: "add-label", Version: "1.0.0",
	Settings: func(s wasmplane.Value) error {
		if v := s.Get("label"); v.Exists() {
			label, value = v.String(), s.Get("value").String()
		}
		return nil
	},
	Mutate: &wasmplane.Admission{
		Match:  []wasmplane.Rule{wasmplane.Resources("pods").On("CREATE")},
		Fields: []string{"object.metadata.labels"},
		Decide: func(in wasmplane.Input, out *wasmplane.Decision) {
			if !in.Get("object.metadata.labels").Get(label).Exists() {
				out.Add("/metadata/labels/"+wasmplane.Token(label), value)
			}
		},
	},
})

func main() {}
