// SPDX-License-Identifier: Apache-2.0

// Command wat2wasm assembles a module in the WebAssembly text format.
//
//	wat2wasm IN.wat OUT.wasm
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "wat2wasm:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("expected IN.wat OUT.wasm")
	}
	source, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	wasm, err := wat.Assemble(string(source))
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return os.WriteFile(args[1], wasm, 0o644)
}
