// SPDX-License-Identifier: Apache-2.0

package adapt

import (
	_ "embed"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/component/encode"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// MemoryName is the name of the adapter by which others read and write the module's memory.
const MemoryName = "guest-memory"

//go:embed memory.wat
var memory string

//go:embed own.wat
var ownMemory string

// Memory is the adapter by which those behind it read and write the module's memory: it has the functions load8, load32
// and load64 of an address, and store8, store32 and store64 of an address and a value.
func Memory() (encode.Adapter, error) { return Assemble(MemoryName, memory) }

// WithOwnMemory makes an adapter of the text of its fields, without (module ...). It has a memory of its own, in which
// addresses from 0 to 8191 are free for it, and the functions
//
//	$load8 $load32 $load64 $store8 $store32 $store64  of the module's memory
//	$fetch, $put (to from n)  that copy bytes from there and to there
//	$room (align n), $forget  that take bytes of its own memory behind 8191, and give all of them back
//
// It comes behind Memory. pages are how large its memory may become.
func WithOwnMemory(name, imports, fields string, pages int) (encode.Adapter, error) {
	return Assemble(name, imports+fmt.Sprintf(ownMemory, pages)+fields)
}

// Assemble makes an adapter of the text of its fields, without (module ...).
func Assemble(name, fields string) (encode.Adapter, error) {
	module, err := wat.Assemble("(module\n" + fields + ")")
	if err != nil {
		return encode.Adapter{}, fmt.Errorf("assemble the adapter %q: %w", name, err)
	}
	return encode.Adapter{Name: name, Module: module}, nil
}
