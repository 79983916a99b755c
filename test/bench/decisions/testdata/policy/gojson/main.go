// The image-policy plugin as one writes it without thinking of cost: it is given the
// whole review and decodes all of it with encoding/json.
package main

import (
	"encoding/json"
	"strings"
	"unsafe"
)

type container struct {
	Image           string `json:"image"`
	SecurityContext struct {
		Privileged bool `json:"privileged"`
	} `json:"securityContext"`
}

type request struct {
	Object struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			Containers     []container `json:"containers"`
			InitContainers []container `json:"initContainers"`
		} `json:"spec"`
	} `json:"object"`
}

type answer struct {
	Allowed *bool            `json:"allowed,omitempty"`
	Message string           `json:"message,omitempty"`
	Patch   []map[string]any `json:"patch,omitempty"`
}

const (
	mutate   = 1
	validate = 2
	failure  = 1 << 31
)

var input, output []byte

func give(b []byte, bit uint64) uint64 {
	output = b
	if len(b) == 0 {
		return bit
	}
	return uint64(uintptr(unsafe.Pointer(&b[0])))<<32 | uint64(len(b)) | bit
}

//go:wasmexport describe
func describe() uint64 {
	match := []map[string]any{{"operations": []string{"CREATE"}, "apiGroups": []string{""}, "resources": []string{"pods"}}}
	b, _ := json.Marshal(map[string]any{"abi": 1, "name": "image-policy", "version": "1.0.0", "hooks": []map[string]any{
		{"op": mutate, "point": "admission.mutate", "match": match}, {"op": validate, "point": "admission.validate", "match": match},
	}})
	return give(b, 0)
}

//go:wasmexport alloc
func alloc(n uint32) uint32 {
	if len(input) < int(n) {
		input = make([]byte, n)
	}
	return uint32(uintptr(unsafe.Pointer(unsafe.SliceData(input))))
}

//go:wasmexport call
func call(op int32, _, n uint32) uint64 {
	var r request
	if err := json.Unmarshal(input[:n], &r); err != nil {
		return give([]byte(err.Error()), failure)
	}
	a := answer{Message: judge(&r)}
	if no := false; a.Message != "" {
		a.Allowed = &no
	} else if op == mutate && r.Object.Metadata.Labels["checked"] == "" {
		a.Patch = []map[string]any{{"op": "add", "path": "/metadata/labels/checked", "value": "yes"}}
	}
	b, err := json.Marshal(a)
	if err != nil {
		return give([]byte(err.Error()), failure)
	}
	return give(b, 0)
}

func judge(r *request) string {
	for _, c := range append(r.Object.Spec.Containers, r.Object.Spec.InitContainers...) {
		if !pinned(c.Image) {
			return "image " + c.Image + " has no fixed tag"
		}
		if c.SecurityContext.Privileged {
			return "a container is privileged"
		}
	}
	return ""
}

func pinned(image string) bool {
	name := image[strings.LastIndexByte(image, '/')+1:]
	return strings.Contains(name, "@") || strings.Contains(name, ":") && !strings.HasSuffix(name, ":latest")
}

func main() {}
