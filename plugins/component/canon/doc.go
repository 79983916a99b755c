// SPDX-License-Identifier: Apache-2.0

// Package canon moves values between the linear memory of a component's core modules and Go: the
// canonical ABI's lifting (memory to value) and lowering (value to memory), for every type, and the tables of
// handles to resources.
//
// A guest believes what it is given, and the host believes nothing: each pointer, length, discriminant,
// character and handle is checked when it is read, memory is looked up again after every call of the guest, and
// what is built in Go is accounted for before it is built. Whatever is wrong is a *Trap, raised by panic: it passes through
// the engine as a trap of the guest does.
//
// Values in Go, by type: bool; int8 to int64, uint8 to uint64; float32, float64; rune for char; string;
// []byte for list<u8>, []any for other lists (the host may pass []int64 for list<s64>), for tuples and records (in the order
// of their fields); Variant for variant, enum, option (none, some) and result (ok, error); Flags; *Handle for own and
// borrow. Lists of tuples stand for maps.
package canon
