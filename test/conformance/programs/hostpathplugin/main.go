// SPDX-License-Identifier: Apache-2.0

// Command hostpathplugin stands in for upstream's image of that name in the suite.
// With --proxy-endpoint it hands each connection of a socket on to one that somebody
// makes to a TCP port: that is how the suite itself is the driver. Without, it is a
// CSI driver: wasmplane's own driver of local volumes, with what upstream's flags
// add or take away.
//
// It has the flags that the suite uses, with upstream's names and defaults; others
// are refused.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// options are the command's flags.
type options struct {
	name, node, endpoint, proxy, state  string
	attach, topology, nodeExpand        bool
	lifecycle, modify                   bool
	mutable                             []string
	maxVolumes, attachLimit             int64
	noControllerExpand, noNodeExpansion bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "hostpathplugin:", err)
		os.Exit(1)
	}
}

func parse(args []string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("hostpathplugin", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.endpoint, "endpoint", "unix:///tmp/csi.sock", "socket to serve at")
	f.StringVar(&o.proxy, "proxy-endpoint", "", "tcp://:PORT: be no driver, and hand each connection of --endpoint to one of this port")
	f.StringVar(&o.name, "drivername", "hostpath.csi.k8s.io", "name of the driver")
	f.StringVar(&o.node, "nodeid", "", "name of this node")
	f.StringVar(&o.state, "statedir", "/csi-data-dir", "directory of the volumes; each driver has its own in it, by its name")
	f.BoolVar(&o.attach, "enable-attach", false, "volumes have to be attached")
	f.BoolVar(&o.topology, "enable-topology", true, "volumes say which node they are on")
	f.BoolVar(&o.nodeExpand, "node-expand-required", true, "a volume grows when its node is asked too")
	f.BoolVar(&o.noControllerExpand, "disable-controller-expansion", false, "only the node expands volumes")
	f.BoolVar(&o.noNodeExpansion, "disable-node-expansion", false, "only the controller expands volumes")
	f.BoolVar(&o.lifecycle, "check-volume-lifecycle", false, "refuse calls in a wrong order")
	f.BoolVar(&o.modify, "enable-controller-modify-volume", false, "volumes can be modified")
	const mutable = "names of parameters that a volume may be modified by, with commas between"
	f.Func("accepted-mutable-parameter-names", mutable, func(s string) error {
		o.mutable = strings.Split(s, ",")
		return nil
	})
	f.Int64Var(&o.maxVolumes, "maxvolumespernode", 0, "how many volumes a node may have; 0 = as many as there are")
	f.Int64Var(&o.attachLimit, "attach-limit", 0, "how many volumes may be attached; 0 = as many as there are")
	f.Int("v", 0, "accepted, and not used: each call is always logged")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q: everything is said by flags", f.Arg(0))
	case o.proxy == "" && (o.name == "" || o.node == ""):
		return o, errors.New("--drivername and --nodeid are needed, except with --proxy-endpoint")
	case strings.ContainsAny(o.name, "/\x00") || o.name == "." || o.name == "..":
		return o, fmt.Errorf("--drivername: %q is no name of a driver: it becomes that of a directory", o.name)
	case o.maxVolumes < 0 || o.attachLimit < 0:
		return o, errors.New("--maxvolumespernode and --attach-limit: expected 0 or more")
	}
	return o, nil
}

// command is the whole command.
func command(ctx context.Context, args []string) error {
	o, err := parse(args, os.Stderr)
	if err != nil {
		return err
	}
	if o.proxy != "" {
		return runProxy(ctx, o.endpoint, o.proxy, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	}
	return runDriver(ctx, o, os.Stderr)
}

// place is what an endpoint means to net.Listen: unix://PATH, PATH or tcp://ADDRESS.
func place(endpoint string) (network, address string, err error) {
	network, address, has := strings.Cut(endpoint, "://")
	if !has {
		network, address = "unix", endpoint
	}
	if network != "unix" && network != "tcp" || address == "" {
		return "", "", fmt.Errorf("endpoint %q: expected unix://PATH, PATH or tcp://ADDRESS:PORT", endpoint)
	}
	return network, address, nil
}
