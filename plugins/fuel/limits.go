// SPDX-License-Identifier: Apache-2.0

package fuel

import (
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/fuel/wasm"
)

// ErrMalformed is wrapped by every error about bytes that are no valid module.
var ErrMalformed = wasm.ErrMalformed

// Bounds of what a module may declare. An engine allocates for each of these before it
// knows what for, and a few bytes declare many. Modules that compilers make stay far below; those of Go
// have tens of thousands of data segments.
const (
	maxTypes    = 1 << 14 // function types: the engine remembers each that it has ever seen
	maxArity    = 1000    // parameters, and results, of one type
	maxArities  = 1 << 16 // the same of all types together
	maxImports  = 1 << 12
	maxGlobals  = 1 << 14
	maxExports  = 1 << 14
	maxTables   = 16
	maxElements = 1 << 14  // element segments
	maxEntries  = 1 << 20  // functions in all of them together
	maxSegments = 1 << 18  // data segments
	maxLocals   = 50_000   // of one function
	maxTargets  = 1 << 16  // of one br_table
	maxCustoms  = 1 << 10  // custom sections
	maxNames    = 16 << 20 // bytes of the name section
)

// LimitNames are the names of the limits, by which a LimitError names one.
func LimitNames() []string {
	return []string{
		"types", "parameters of a type", "results of a type", "parameters and results of all types", "imports", "globals", "exports",
		"tables", "entries of a table", "element segments", "functions in element segments", "data segments", "functions",
		"bytes of a function", "locals in one function", "targets of a br_table", "custom sections", "bytes of names",
	}
}

// checkMemory refuses memories that the engine does not have.
func checkMemory(flags byte) error {
	switch {
	case flags&4 != 0:
		return fmt.Errorf("%w: it has a memory of 64 bits (memory64): build it for wasm32", wasm.ErrMalformed)
	case flags&2 != 0:
		return fmt.Errorf("%w: it has a shared memory (threads): build it without -pthread or +atomics", wasm.ErrMalformed)
	case flags > 1:
		return fmt.Errorf("%w: it has a memory of an unknown kind (%d)", wasm.ErrMalformed, flags)
	}
	return nil
}
