// SPDX-License-Identifier: Apache-2.0

//go:build wasip1

package wasmplane

import (
	"errors"
	"unsafe"
)

var (
	inputBuffer []byte
	answer      []byte // keeps the last answer alive until the next call
)

//go:wasmexport alloc
func alloc(n int32) int32 {
	if n <= 0 {
		return 0
	}
	if cap(inputBuffer) < int(n) {
		inputBuffer = make([]byte, max(int(n), 4096))
	}
	inputBuffer = inputBuffer[:n]
	return int32(uintptr(unsafe.Pointer(unsafe.SliceData(inputBuffer))))
}

// load reads eight bytes of a table, lowest first as this machine does.
func load(p unsafe.Pointer) uint64 { return *(*uint64)(p) }

const errorBit = 1 << 31

func give(b []byte, failed bool) int64 {
	answer = b
	n := uint64(len(b))
	if failed {
		n |= errorBit
	}
	if len(b) == 0 {
		return int64(n)
	}
	return int64(uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))<<32 | n)
}

//go:wasmexport describe
func exportDescribe() int64 {
	if registered == nil {
		return give([]byte(errNoPlugin.Error()), true)
	}
	return give(describe(), false)
}

//go:wasmexport call
func exportCall(op, at, n int32) int64 {
	var input []byte
	if n > 0 && len(inputBuffer) >= int(n) {
		input = inputBuffer[:n]
	}
	out, err := dispatch(op, input)
	if err != nil {
		return give([]byte(err.Error()), true)
	}
	return give(out, false)
}

// reserve makes room for n rows, keeping what is there.
func (t *Table) reserve(n int) *int64 {
	if t.ColumnsFunc != nil && t.nodeWidth == 0 {
		t.Columns, t.Pod = t.ColumnsFunc()
	}
	t.nodeWidth, t.podWidth = len(t.Columns), len(t.Pod)
	if need := n * t.nodeWidth; need > len(t.rows) {
		rows := make([]int64, need)
		copy(rows, t.rows)
		t.rows = rows
	}
	if n > len(t.verdicts) {
		t.verdicts = make([]Judgement, n)
	}
	return unsafe.SliceData(t.rows)
}

//go:wasmexport reserve
func exportReserve(rows int32) int32 {
	if registered == nil || registered.Table == nil {
		return 0
	}
	return int32(uintptr(unsafe.Pointer(registered.Table.reserve(int(rows)))))
}

//go:wasmimport wasmplane call
func hostCall(op unsafe.Pointer, opLen uint32, in unsafe.Pointer, inLen uint32, out unsafe.Pointer, outCap uint32) int64

// Call calls a host function that the operator granted, such as "log".
func Call(function string, input []byte) ([]byte, error) {
	out := make([]byte, 1024)
	n := hostCall(unsafe.Pointer(unsafe.StringData(function)), uint32(len(function)),
		unsafe.Pointer(unsafe.SliceData(input)), uint32(len(input)), unsafe.Pointer(unsafe.SliceData(out)), uint32(len(out)))
	failed := n < 0
	if failed || n > int64(len(out)) {
		// An empty name gives the last reply again, and its length.
		n = hostCall(nil, 0, nil, 0, nil, 0)
		out = make([]byte, n)
		n = hostCall(nil, 0, nil, 0, unsafe.Pointer(unsafe.SliceData(out)), uint32(len(out)))
	}
	if failed {
		return nil, errors.New(string(out[:n]))
	}
	return out[:n], nil
}

// Log writes a line to the host's log; the plugin needs "log".
func Log(message string) {
	_, _ = Call("log", Object{"level": "INFO", "message": message}.append(nil)) // a log that is not granted is no failure
}
