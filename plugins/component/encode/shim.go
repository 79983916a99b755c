// SPDX-License-Identifier: Apache-2.0

package encode

import (
	"encoding/binary"
	"strconv"

	"github.com/wasmplane/wasmplane/plugins/component/bytejoin"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
	"github.com/wasmplane/wasmplane/plugins/leb128"
)

// Sections and instructions of core modules.
const (
	coreTypes     = 1
	coreImports   = 2
	coreFuncs     = 3
	coreTables    = 4
	coreExports   = 7
	coreStart     = 8
	coreElements  = 9
	coreCode      = 10
	opLocalGet    = byte(0x20)
	opConst       = byte(0x41)
	opCall        = byte(0x10)
	opCallByTable = byte(0x11)
	opEnd         = byte(0x0b)
	oneOfFuncs    = byte(0x00)
	oneOfTables   = byte(0x01)
)

// types encodes the types of functions, each once, and says which is whose.
func types(functions []*ctype.CoreFunc) (encoded [][]byte, of []int) {
	known := map[string]int{}
	for _, f := range functions {
		t := bytejoin.Join(byte(0x60), values(f.Params), values(f.Results))
		i, ok := known[string(t)]
		if !ok {
			i = len(encoded)
			known[string(t)] = i
			encoded = append(encoded, t)
		}
		of = append(of, i)
	}
	return encoded, of
}

func values(all []ctype.Core) []byte {
	out := bytejoin.Join(len(all))
	for _, c := range all {
		out = append(out, byte(c))
	}
	return out
}

// table is the type of the table: as long as there are functions.
func table(n int) []byte { return bytejoin.Join(byte(ctype.FuncRef), byte(1), n, n) }

// shimModule calls functions by a table, under the names 0, 1, 2 and so on. It exports the table.
func shimModule(functions []*ctype.CoreFunc) []byte {
	encoded, of := types(functions)
	w := &items{out: []byte(coreMagic)}
	for _, t := range encoded {
		w.add(coreTypes, t)
	}
	for _, t := range of {
		w.add(coreFuncs, t)
	}
	w.add(coreTables, table(len(functions)))
	for i := range functions {
		w.add(coreExports, strconv.Itoa(i), oneOfFuncs, i)
	}
	w.add(coreExports, tableName, oneOfTables, 0)
	for i, f := range functions {
		body := bytejoin.Join(0) // no locals
		for p := range f.Params {
			body = append(body, bytejoin.Join(opLocalGet, p)...)
		}
		body = append(body, bytejoin.Join(opConst, signed(i), opCallByTable, of[i], 0, opEnd)...)
		w.add(coreCode, len(body), body)
	}
	w.flush()
	return w.out
}

// unsigned and signed encode an index, where a number is an index alone and where it may be a type as well.
func unsigned(n int) []byte { return binary.AppendUvarint(nil, uint64(n)) }

func signed(n int) []byte { return leb128.AppendSigned(nil, int64(n)) }

// fixupModule puts functions into the table, and then calls those that want to be called first.
func fixupModule(functions []*ctype.CoreFunc, initialized int) []byte {
	all := functions
	if initialized > 0 {
		all = append(all[:len(all):len(all)], &ctype.CoreFunc{})
	}
	encoded, of := types(all)
	w := &items{out: []byte(coreMagic)}
	for _, t := range encoded {
		w.add(coreTypes, t)
	}
	for i := range functions {
		w.add(coreImports, "", strconv.Itoa(i), oneOfFuncs, of[i])
	}
	for i := range initialized {
		w.add(coreImports, "", initName+strconv.Itoa(i), oneOfFuncs, of[len(functions)])
	}
	if len(functions) > 0 {
		w.add(coreImports, "", tableName, oneOfTables, table(len(functions)))
	}
	start := len(functions) + initialized
	if initialized > 0 {
		w.add(coreFuncs, of[len(functions)])
		w.flush()
		w.whole(coreStart, bytejoin.Join(start))
	}
	if len(functions) > 0 {
		segment := bytejoin.Join(0, opConst, 0, opEnd, len(functions))
		for i := range functions {
			segment = append(segment, bytejoin.Join(i)...)
		}
		w.add(coreElements, segment)
	}
	if initialized > 0 {
		body := bytejoin.Join(0) // no locals
		for i := len(functions); i < start; i++ {
			body = append(body, bytejoin.Join(opCall, i)...)
		}
		body = append(body, opEnd)
		w.add(coreCode, len(body), body)
	}
	w.flush()
	return w.out
}
