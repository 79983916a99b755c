// SPDX-License-Identifier: Apache-2.0

//go:build !wasip1

package wasmplane

import (
	"encoding/binary"
	"errors"
	"unsafe"
)

// Try runs an operation of the registered plugin, as a host would: input is what
// the host sends (sdk/spec, section 5), the answer is what it would get. It is for tests.
func Try(op int32, input []byte) ([]byte, error) { return dispatch(op, input) }

// Describe is the manifest of the registered plugin. It is for tests.
func Describe() []byte { return describe() }

// Call calls a host function; outside of a plugin there is no host.
func Call(string, []byte) ([]byte, error) { return nil, errors.New("there is no host") }

// Log writes a line to the host's log; outside of a plugin there is none.
func Log(string) {}

// load reads eight bytes of a table, lowest first.
func load(p unsafe.Pointer) uint64 { return binary.LittleEndian.Uint64(unsafe.Slice((*byte)(p), 8)) }
