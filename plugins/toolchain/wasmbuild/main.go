// SPDX-License-Identifier: Apache-2.0

// Command wasmbuild builds the plugin in a folder, for the repository's own
// makefiles: wasmbuild [-component] DIR OUT. With -install LANGUAGES it installs compilers, with -runtime
// FILE it writes what binaries embed to build plugins in JavaScript. Users have wasmplane plugin build.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "wasmbuild:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	component := len(args) > 0 && args[0] == "-component"
	if component {
		args = args[1:]
	}
	b, err := toolchain.New(toolchain.Config{Component: component, Progress: func(s string) {
		if strings.HasPrefix(s, "installing") {
			fmt.Fprintln(os.Stderr, s)
		}
	}})
	if err != nil {
		return err
	}
	switch {
	case len(args) == 2 && args[0] == "-install":
		for _, l := range strings.Split(args[1], ",") {
			if err := b.Install(ctx, toolchain.Language(l)); err != nil {
				return err
			}
		}
		return nil
	case len(args) == 2 && args[0] == "-runtime":
		return b.PackRuntime(ctx, args[1])
	case len(args) == 2:
		return b.Build(ctx, args[0], args[1])
	}
	return errors.New("usage: wasmbuild [-component] DIR OUT, wasmbuild -install LANGUAGE[,LANGUAGE], or wasmbuild -runtime FILE")
}
