// SPDX-License-Identifier: Apache-2.0

// Command record writes the definitions of the published module as the file that
// package definitions embeds. `make gen` runs it.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/klauspost/compress/zstd"
	"k8s.io/kube-openapi/pkg/validation/spec"
	generated "k8s.io/kubernetes/pkg/generated/openapi"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: record FILE")
		os.Exit(2)
	}
	if err := record(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "record definitions:", err)
		os.Exit(1)
	}
}

func record(file string) error {
	all := generated.GetOpenAPIDefinitions(func(name string) spec.Ref { return spec.MustCreateRef(name) })
	text, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode the definitions: %w", err)
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("compress the definitions: %w", err)
	}
	return os.WriteFile(file, encoder.EncodeAll(text, nil), 0o644)
}
