// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/wasmplane/wasmplane/plugins/fuel"
)

// checkShape refuses modules that could not be called, and says what they lack.
func checkShape(code wazero.CompiledModule, abi *ABI) error {
	for _, f := range code.ImportedFunctions() {
		mod, name, _ := f.Import()
		if mod == fuel.ImportModule {
			continue
		}
		def, known := abi.function(mod, name)
		if !known && abi != nil {
			return fmt.Errorf("the module imports %s.%s, which modules of ABI %s are not given here", mod, name, abi.Name)
		}
		if !known {
			return fmt.Errorf("the module imports %s.%s, which no plugin is given: %s", mod, name, importHelp(mod))
		}
		if !slices.Equal(def.params, f.ParamTypes()) || !slices.Equal(def.results, f.ResultTypes()) {
			return fmt.Errorf("the module imports %s.%s with other parameters than it has", mod, name)
		}
	}
	if len(code.ImportedMemories()) > 0 {
		return errors.New("the module imports its memory: a plugin defines and exports its own (memory)")
	}
	if _, ok := code.ExportedMemories()["memory"]; !ok {
		return errors.New(`the module exports no memory named "memory"`)
	}
	if abi != nil {
		return abi.check(code)
	}
	exports := code.ExportedFunctions()
	if _, ok := exports["_start"]; ok && exports["_initialize"] == nil && exports["call"] == nil {
		return errors.New("the module is a command (it exports _start): build it as a reactor, in Go with -buildmode=c-shared")
	}
	for _, want := range requiredExports {
		f, ok := exports[want.name]
		if !ok {
			return fmt.Errorf("the module exports no function %s: it is no plugin of ABI 1 (sdk/spec/README.md)", want.name)
		}
		if !slices.Equal(f.ParamTypes(), want.params) || !slices.Equal(f.ResultTypes(), want.results) {
			return fmt.Errorf("the exported function %s has the wrong signature: expected %s", want.name, want.text)
		}
	}
	return nil
}

var requiredExports = []struct {
	name, text      string
	params, results []api.ValueType
}{
	{"describe", "describe() -> i64", nil, []api.ValueType{api.ValueTypeI64}},
	{"alloc", "alloc(length i32) -> i32", []api.ValueType{api.ValueTypeI32}, []api.ValueType{api.ValueTypeI32}},
	{
		"call", "call(op i32, ptr i32, len i32) -> i64",
		[]api.ValueType{api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI32},
		[]api.ValueType{api.ValueTypeI64},
	},
}

func importHelp(mod string) string {
	switch {
	case mod == "env":
		return "an undefined symbol was probably left to the linker"
	case strings.HasPrefix(mod, "wasi"):
		return "only wasi_snapshot_preview1 is there, and of it what needs no files or network"
	}
	return "the host's one function is wasmplane.call"
}
