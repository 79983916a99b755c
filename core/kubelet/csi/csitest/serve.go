// SPDX-License-Identifier: Apache-2.0

package csitest

import (
	"context"
	"flag"
	"fmt"
	"io"
	"path/filepath"

	"github.com/wasmplane/wasmplane/core/run"
)

// Serve is a program around a Driver, called disk.example: [--attach] KUBELET NODE VOLUMES,
// which are the kubelet's directory, the node's name and the directory of the volumes. It
// prints what the kubelet says to its registration.
func Serve(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("driver", flag.ContinueOnError)
	attach := flags.Bool("attach", false, "its controller attaches volumes")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("driver: %w", err)
	}
	kubelet, node, volumes := flags.Arg(0), flags.Arg(1), flags.Arg(2)
	d := New(Config{
		Name: "disk.example", Dir: volumes, Socket: filepath.Join(kubelet, "plugins", "disk.example", "csi.sock"),
		Registry: filepath.Join(kubelet, "plugins_registry"), NodeID: node, Topology: map[string]string{"disk.example/node": node},
		MaxVolumes: 3, Attach: *attach,
	})
	return run.Together(ctx, d.Run, func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case s := <-d.Registered():
				fmt.Fprintln(out, "registered:", s.PluginRegistered, s.Error)
			}
		}
	})
}
