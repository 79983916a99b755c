// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/standalone"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/wire"
	"github.com/wasmplane/wasmplane/core/run/memory"
)

// components are the commands that run one component as a process of its own.
func (a *app) components() []*cobra.Command {
	return []*cobra.Command{
		a.apiserver(),
		a.component("scheduler", "Give each pod its node", standalone.Scheduler, func(c *cobra.Command, o *wire.Options) {
			c.Flags().StringVar(&o.Lease, "lease", "", "`NAME` of the lease to compete for; another than the default beside a scheduler that stays (default kube-scheduler)")
		}),
		a.component("controllers", "Run the control loops", standalone.Controllers, func(c *cobra.Command, o *wire.Options) {
			c.Flags().Var((*only)(o), "only", "which `LOOPS` to run: plugins (those of Wasm plugins; the cluster's own are left to others)")
		}),
		a.component("kubelet", "Run this machine as a node", standalone.Kubelet, func(c *cobra.Command, _ *wire.Options) {
			c.Flags().String("nodes", "", "`NODES` to run: real (this machine) or simulated:N (default real)")
			c.Flags().String("node-name", "", "`NAME` of the real node (default: the host's name)")
		}),
		a.component("proxy", "Route Services on this machine, and answer the cluster's DNS", standalone.Proxy, nil),
		a.webhook(),
	}
}

func (a *app) apiserver() *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:   "apiserver",
		Short: "Serve the API",
		Long: `Serve the API. It makes the cluster's certificates, and a kubeconfig for each
component in DATA_DIR/components.`,
		Args: shell.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.run(c, &s, "", wire.APIServer)
		},
	}
	a.addSettings(c.Flags(), &s)
	a.addServer(c.Flags())
	return c
}

func (a *app) component(name, what string, run func(context.Context, wire.Options, func(wire.Info)) error,
	more func(*cobra.Command, *wire.Options),
) *cobra.Command {
	var s settings
	var o wire.Options
	var kubeconfig string
	c := &cobra.Command{
		Use:   name,
		Short: what,
		Args:  shell.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.FromEnvironment(c.Flags()); err != nil {
				return err
			}
			if kubeconfig == "" {
				return errNoKubeconfig
			}
			return a.runWith(c, &s, kubeconfig, run, func(w *wire.Options) { w.Lease, w.OnlyPlugins = o.Lease, o.OnlyPlugins })
		},
	}
	a.addSettings(c.Flags(), &s)
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `FILE` with the component's identity (required)")
	if more != nil {
		more(c, &o)
	}
	return c
}

// only is the flag of that name: it can be set to "plugins".
type only wire.Options

func (o *only) String() string { return "" }
func (*only) Type() string     { return "LOOPS" }

func (o *only) Set(v string) error {
	if v != "plugins" {
		return fmt.Errorf("expected plugins, found %q", v)
	}
	o.OnlyPlugins = true
	return nil
}

// run runs one component in the foreground; it logs to stderr.
func (a *app) run(c *cobra.Command, s *settings, kubeconfig string,
	component func(context.Context, wire.Options, func(wire.Info)) error,
) error {
	return a.runWith(c, s, kubeconfig, component, func(*wire.Options) {})
}

// runWith is run with further options.
func (a *app) runWith(c *cobra.Command, s *settings, kubeconfig string,
	component func(context.Context, wire.Options, func(wire.Info)) error, more func(*wire.Options),
) error {
	cfg, err := a.load(c.Flags(), s)
	if err != nil {
		return err
	}
	logger, err := newLogger(a.Err, s)
	if err != nil {
		return err
	}
	memory.Limit(c.Context(), logger)
	dir, err := s.Open(func(notice string) { logger.WarnContext(c.Context(), "modes of the data directory", "notice", notice) })
	if err != nil {
		return err
	}
	lock := (*datadir.Lock)(nil)
	switch {
	case kubeconfig == "": // the apiserver owns the directory
		lock, err = dir.Lock()
	case c.Name() == "kubelet": // it puts containers on this machine, which later commands must find
		lock, err = dir.LockNode()
	}
	if err != nil {
		return err
	}
	defer lock.Release()
	if _, err := os.Stat(kubeconfig); kubeconfig != "" && err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	options := wire.Options{
		Config: cfg, Dir: dir, Logger: logger, Version: Version, Kubeconfig: kubeconfig, Flags: s.values(),
	}
	more(&options)
	return component(c.Context(), options, func(wire.Info) { logger.Info("ready", "component", c.Name()) })
}
