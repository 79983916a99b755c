// SPDX-License-Identifier: Apache-2.0

// Command mkimage wraps a static program into an image and writes it as a docker
// archive, for `wasmplane image import` and for docker load.
package main

import (
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/wasmplane/wasmplane/core/kubelet/images"
)

func main() {
	program := flag.String("program", "", "the static program")
	name := flag.String("name", "", "name of the image, with a tag")
	arch := flag.String("arch", runtime.GOARCH, "architecture of the program")
	ports := flag.String("ports", "", "ports it listens on, such as 80/tcp, separated by commas")
	out := flag.String("o", "", "file to write")
	flag.Parse()
	if *program == "" || *name == "" || *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*program, *name, *arch, *ports, *out); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func run(program, name, arch, ports, out string) error {
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	p := images.Program{Name: name, Path: path.Join("/", filepath.Base(program)), Content: content, Arch: arch}
	if ports != "" {
		p.Ports = strings.Split(ports, ",")
	}
	archive, err := p.Archive()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	tmp := out + ".new"
	if err := os.WriteFile(tmp, archive, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, out)
}
