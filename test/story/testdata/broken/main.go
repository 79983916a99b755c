// SPDX-License-Identifier: Apache-2.0

// Command broken is a release of wasmplane that knows its version and nothing else: it fails
// when it is to work, or, if its version ends in "hang", never gets anywhere.
package main

import (
	"fmt"
	"os"
	"strings"
)

// Set by the linker.
var version, kubernetes = "unknown", "v1.37.1"

func main() {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "version":
		fmt.Printf("wasmplane %s (Kubernetes %s, go, linux)\n", version, kubernetes)
	case strings.HasSuffix(version, "hang"):
		fmt.Println("about to hang")
		// A read from a pipe that nobody writes to.
		r, _, err := os.Pipe()
		if err == nil {
			_, err = r.Read(make([]byte, 1))
		}
		fmt.Println(err)
	default:
		fmt.Fprintln(os.Stderr, "error: the flux capacitor is missing")
		os.Exit(1)
	}
}
