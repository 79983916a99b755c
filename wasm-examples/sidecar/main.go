// SPDX-License-Identifier: Apache-2.0

// The sidecar plugin puts a container into pods that ask for it by an annotation.
package main

import (
	"errors"

	wasmplane "github.com/wasmplane/wasmplane/sdk/go"
)

var (
	annotation string
	container  wasmplane.Value
)

var _ = wasmplane.Register(wasmplane.Plugin{
	Name: "sidecar", Version: "1.0.0",
	Settings: func(s wasmplane.Value) error {
		annotation, container = s.Get("annotation").String(), s.Get("container")
		if annotation == "" || container.Get("name").String() == "" || container.Get("image").String() == "" {
			return errors.New("annotation and container (with name and image) are missing")
		}
		return nil
	},
	Mutate: &wasmplane.Admission{
		Match:  []wasmplane.Rule{wasmplane.Resources("pods").On("CREATE")},
		Fields: []string{"object.metadata.annotations", "object.spec.containers[*].name", "object.spec.initContainers[*].name"},
		Decide: func(in wasmplane.Input, out *wasmplane.Decision) {
			if in.Get("object.metadata.annotations").Get(annotation).String() != "true" {
				return
			}
			// It is asked again when a later plugin changes the pod.
			for _, field := range []string{"object.spec.containers[*].name", "object.spec.initContainers[*].name"} {
				for _, name := range in.Get(field).Strings() {
					if name == container.Get("name").String() {
						return
					}
				}
			}
			out.Add("/spec/containers/-", container)
		},
	},
})

func main() {}
