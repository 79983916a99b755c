// SPDX-License-Identifier: Apache-2.0

// Package check reports what a machine or a cluster lacks, and what to do about it. It
// changes nothing.
package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/store/etcd/diskspeed"
)

// ErrLacking is what Run answers when something is; what it is has been printed.
var ErrLacking = errors.New("something is lacking")

// Run tells of the machine, or, by the numbers of the benchmark, of a cluster.
func Run(ctx context.Context, w io.Writer, c *config.Configuration, dataDir string, cis bool) error {
	abs, err := filepath.Abs(dataDir)
	if err != nil {
		return fmt.Errorf("data directory %s: %w", dataDir, err)
	}
	look := func(ctx context.Context, w io.Writer) bool {
		disk(ctx, w, datadir.Dir(abs))
		return host(ctx, w, c) && clock(ctx, w, datadir.Dir(abs))
	}
	if cis {
		s, err := open(c, datadir.Dir(abs))
		if err != nil {
			return err
		}
		look = s.report
	}
	if !look(ctx, w) {
		return ErrLacking
	}
	return nil
}

// disk tells how long a server's store would wait for the disk. A worker does not mind.
func disk(ctx context.Context, w io.Writer, dir datadir.Dir) {
	l, err := diskspeed.Probe(ctx, dir.Etcd())
	switch {
	case err != nil:
		fmt.Fprintln(w, "-", err)
	case l.Slow() != "":
		fmt.Fprintln(w, "- for a server,", l.Slow())
	}
}

// clock tells whether the clock of a machine that has joined is the server's.
func clock(ctx context.Context, w io.Writer, dir datadir.Dir) (ok bool) {
	m, err := join.Read(dir.Member())
	if err != nil {
		return true // it has not joined, so that there is nothing to compare
	}
	if err := join.Clock(ctx, dir.Member(), m, time.Now); err != nil {
		fmt.Fprintln(w, "-", err)
		return false
	}
	return true
}

// host tells what this machine lacks for a real node, and whether one can run here.
func host(ctx context.Context, w io.Writer, c *config.Configuration) (ok bool) {
	fatal, restrictions := machine.CheckHost(ctx, c)
	for _, p := range append(fatal, restrictions...) {
		fmt.Fprintln(w, "-", p)
	}
	switch {
	case len(fatal) == 0 && len(restrictions) == 0:
		fmt.Fprintln(w, "This host has everything that a real node needs.")
	case len(fatal) == 0:
		fmt.Fprintln(w, "\nA real node runs here, with the restrictions above.")
	default:
		fmt.Fprintln(w, "\nSimulated nodes work without any of this: wasmplane up --nodes simulated:3")
	}
	return len(fatal) == 0
}
