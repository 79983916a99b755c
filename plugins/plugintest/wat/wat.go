// SPDX-License-Identifier: Apache-2.0

// Package wat assembles the WebAssembly text format, as much of it as tests and
// hand-written plugins need: core 1.0 with sign extension, saturating
// conversion, bulk memory, reference types of functions and multi-value, in flat and folded
// form, with inline imports and exports. What it does not know it refuses, with
// the line.
package wat

import (
	"fmt"
)

// Assemble translates one module.
func Assemble(source string) (wasm []byte, err error) {
	defer func() {
		if r := recover(); r != nil { // a field with too few parts: which one, the reader has to find
			wasm, err = nil, fmt.Errorf("a field is incomplete: %v", r)
		}
	}()
	nodes, err := parse(source)
	if err != nil {
		return nil, err
	}
	if len(nodes) == 1 && nodes[0].head() == "module" {
		nodes = nodes[0].list[1:]
	}
	a := &assembler{names: map[string]map[string]uint32{}}
	if err := a.module(nodes); err != nil {
		return nil, err
	}
	return a.encode(), nil
}
