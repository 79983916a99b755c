// SPDX-License-Identifier: Apache-2.0

// Command schemagen writes the JSON schemas of the files that operators and authors write.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/wasmplane/wasmplane/plugins/author/schema"
)

func main() {
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func write() error {
	files, err := schema.Files(".")
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(schema.Dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
