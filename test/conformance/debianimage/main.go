// SPDX-License-Identifier: Apache-2.0

// Command debianimage makes an image of packages of this machine's Debian (or Ubuntu), for
// tests that run other people's servers: as `apt-get install` would unpack them, with nothing
// installed on this machine.
//
//	go run ./debianimage [-cache DIR] ARCHIVE < SPEC
//
// SPEC is an image.Spec in JSON. ARCHIVE is what `wasmplane image import` reads. Packages are
// kept in DIR, and downloaded once.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/wasmplane/wasmplane/test/conformance/internal/image"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "debianimage:", err)
		os.Exit(1) //nolint:gocritic // the signal's handler ends with the process
	}
}

func run(ctx context.Context, args []string, in io.Reader) (err error) {
	flags := flag.NewFlagSet("debianimage", flag.ContinueOnError)
	cache := flags.String("cache", "", "where downloaded packages are kept; empty: in the user's cache")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return fmt.Errorf("usage: debianimage [-cache DIR] ARCHIVE < SPEC, found %d arguments", flags.NArg())
	}
	if *cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		*cache = filepath.Join(user, "wasmplane", "debian")
	}
	spec := image.Spec{}
	decoder := json.NewDecoder(in)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&spec); err != nil {
		return fmt.Errorf("read the spec: %w", err)
	}
	if len(spec.Names) == 0 {
		return fmt.Errorf("the spec names no image: fill in Names")
	}
	layers, err := os.MkdirTemp("", "debianimage")
	if err != nil {
		return err
	}
	defer func() {
		if gone := os.RemoveAll(layers); err == nil {
			err = gone
		}
	}()
	b := &image.Builder{Debian: image.Debian{Dir: *cache}, Dir: layers}
	return b.Build(ctx, []image.Spec{spec}, flags.Arg(0))
}
