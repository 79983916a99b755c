// The image-policy plugin: see the package's documentation. It reads what it asked for.
package main

import (
	"strings"

	wasmplane "github.com/wasmplane/wasmplane/sdk/go"
)

const (
	images, initImages = "object.spec.containers[*].image", "object.spec.initContainers[*].image"
	rights, initRights = "object.spec.containers[*].securityContext.privileged", "object.spec.initContainers[*].securityContext.privileged"
	labels             = "object.metadata.labels"
)

var pods = []wasmplane.Rule{wasmplane.Resources("pods").On("CREATE")}

var _ = wasmplane.Register(wasmplane.Plugin{
	Name: "image-policy", Version: "1.0.0",
	Validate: &wasmplane.Admission{
		Match: pods, Fields: []string{images, initImages, rights, initRights},
		Decide: func(in wasmplane.Input, out *wasmplane.Decision) { judge(in, out) },
	},
	Mutate: &wasmplane.Admission{
		Match: pods, Fields: []string{images, initImages, rights, initRights, labels},
		Decide: func(in wasmplane.Input, out *wasmplane.Decision) {
			if judge(in, out) && !in.Get(labels).Get("checked").Exists() {
				out.Add("/metadata/labels/checked", "yes")
			}
		},
	},
})

func judge(in wasmplane.Input, out *wasmplane.Decision) bool {
	for _, field := range []string{images, initImages} {
		for i, list := 0, in.Get(field); i < list.Len(); i++ {
			if image := list.At(i).String(); !pinned(image) {
				out.Deny("image " + image + " has no fixed tag")
				return false
			}
		}
	}
	for _, field := range []string{rights, initRights} {
		for i, list := 0, in.Get(field); i < list.Len(); i++ {
			if list.At(i).Bool() {
				out.Deny("a container is privileged")
				return false
			}
		}
	}
	return true
}

func pinned(image string) bool {
	name := image[strings.LastIndexByte(image, '/')+1:]
	return strings.Contains(name, "@") || strings.Contains(name, ":") && !strings.HasSuffix(name, ":latest")
}

func main() {}
