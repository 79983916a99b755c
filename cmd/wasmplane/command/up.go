// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/carry"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/members"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/progress"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/supervisor"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/wire"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/logfile"
	"github.com/wasmplane/wasmplane/core/run/memory"
)

func (a *app) up() *cobra.Command {
	var s settings
	var merge bool
	c := &cobra.Command{
		Use:   "up",
		Short: "Run a whole cluster in this process",
		Long: `Run a whole cluster in this process: store, apiserver, controllers, scheduler,
and nodes. It stays in the foreground; Ctrl-C stops the control plane and leaves
pods running, and the next up carries on with them.`,
		Example: `  wasmplane up
  wasmplane up --nodes simulated:3 --data-dir ~/try
  wasmplane up --config configs/dev.yaml`,
		Args: shell.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := a.load(c.Flags(), &s)
			if err != nil {
				return err
			}
			return a.runUp(c.Context(), cfg, &s, merge)
		},
	}
	a.addSettings(c.Flags(), &s)
	a.addUp(c.Flags())
	a.addAirgap(c.Flags())
	c.Flags().BoolVar(&merge, "merge-kubeconfig", false, "put a context named after the cluster into your own kubeconfig; down --purge takes it out again")
	return c
}

func (a *app) runUp(ctx context.Context, cfg *config.Configuration, s *settings, merge bool) error {
	dir, release, err := a.take(s, cfg.Node.Mode.Real)
	if err != nil {
		return err
	}
	defer release()
	if _, err := join.Read(dir.Member()); !errors.Is(err, join.ErrNotJoined) {
		return fmt.Errorf("this machine is a worker of a cluster of other machines: `wasmplane agent --data-dir %s` carries on as that, `wasmplane down --purge` leaves it", dir)
	}
	return a.upHere(ctx, cfg, s, dir, merge)
}

// upHere runs the server of a directory that this process has.
func (a *app) upHere(ctx context.Context, cfg *config.Configuration, s *settings, dir datadir.Dir, merge bool) error {
	return a.foreground(ctx, cfg, s, dir, fmt.Sprintf("starting cluster %q", cfg.Cluster.Name),
		func(ctx context.Context, o wire.Options, ready func(wire.Info)) error {
			begin := time.Now()
			if err := carry.Begin(ctx, cfg, dir, o.Inform); err != nil {
				return err
			}
			o.MergeKubeconfig = mergeTarget(merge)
			return wire.Up(ctx, o, func(i wire.Info) {
				a.announce(i, dir, time.Since(begin), merge)
				ready(i)
			})
		}, "The control plane has stopped."+leftRunning(cfg))
}

// take opens the data directory for this process alone, node included.
func (a *app) take(s *settings, node bool) (dir datadir.Dir, release func(), err error) {
	dir, err = s.Open(func(notice string) { fmt.Fprintln(a.Out, notice) })
	if err != nil {
		return "", nil, err
	}
	lock, err := dir.Lock()
	if err != nil || !node {
		return dir, func() { lock.Release() }, err
	}
	second, err := dir.LockNode()
	if err != nil {
		lock.Release()
		return "", nil, err
	}
	return dir, func() { second.Release(); lock.Release() }, nil
}

// logLimit bounds the log, of which there are two files at most, in bytes.
const logLimit = 100 << 20

// foreground runs work with a log in the data directory, prints what it does, and stopped
// when a person has ended it.
func (a *app) foreground(ctx context.Context, cfg *config.Configuration, s *settings, dir datadir.Dir, what string,
	work func(context.Context, wire.Options, func(wire.Info)) error, stopped string,
) error {
	caller, err := supervisor.TakeCaller()
	if err != nil {
		return err
	}
	log, err := logfile.Open(dir.Log(), logLimit)
	if err != nil {
		return err
	}
	defer log.Close()
	defer reopening(ctx, log)()
	logger, err := newLogger(log, s)
	if err != nil {
		return err
	}
	memory.Limit(ctx, logger)
	fmt.Fprintf(a.Out, "wasmplane %s: %s in %s (log: %s)\n", Version, what, dir, dir.Log())
	p := &progress.Printer{W: a.Out, Log: dir.Log()}
	defer p.Stop()
	defer caller.Close()
	err = work(ctx, wire.Options{
		Config: cfg, Dir: dir, Logger: logger, Progress: p.Report, Note: p.PrintLine, Version: Version, Flags: s.values(),
	}, func(i wire.Info) {
		if err := dir.WriteReady(Version); err != nil {
			logger.WarnContext(ctx, "an upgrade would not learn that this process is ready", "error", err)
		}
		if err := caller.Ready(); err != nil {
			logger.WarnContext(ctx, "service manager was not notified", "error", err)
		}
		caller.Start(ctx, i.Healthy, logger)
	})
	switch {
	case ctx.Err() != nil && err == nil:
		fmt.Fprintln(a.Out, stopped)
		return nil
	case err != nil:
		return fmt.Errorf("%w\n(the log is %s)", err, dir.Log())
	}
	return nil
}

// reopening has SIGHUP open the log again, until the function that it returns is called. At a terminal the
// signal keeps its meaning: the terminal is gone.
func reopening(ctx context.Context, log *logfile.File) (stop func()) {
	if term.IsTerminal(int(os.Stdin.Fd())) {
		return func() {}
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	ended := run.Go("reopening of the log", func() error { return log.ReopenOn(ctx, signals) })
	return func() {
		signal.Stop(signals)
		cancel()
		<-ended
	}
}

func mergeTarget(merge bool) string {
	if !merge {
		return ""
	}
	return clientcmd.NewDefaultPathOptions().GetDefaultFilename()
}

func leftRunning(cfg *config.Configuration) string {
	if cfg.Node.Mode.Real {
		return " Pods keep running; `wasmplane up` carries on, `wasmplane down` removes them."
	}
	return ""
}

func (a *app) announce(i wire.Info, dir datadir.Dir, took time.Duration, merged bool) {
	var b strings.Builder
	fmt.Fprintf(&b, "\nReady in %s: %s, %s.\n\n", progress.Short(took), i.Server, i.Nodes)
	if merged {
		fmt.Fprintf(&b, "  kubectl --context %s get nodes\n", i.Cluster)
	} else {
		fmt.Fprintf(&b, "  export KUBECONFIG=%s\n  %s get nodes\n", dir.Kubeconfig(), kubectlName())
	}
	b.WriteString("\nCtrl-C stops the control plane.\n")
	fmt.Fprint(a.Out, b.String())
}

// kubectlName is what a user types: kubectl where there is one, else ours.
func kubectlName() string {
	if _, err := exec.LookPath("kubectl"); err == nil {
		return "kubectl"
	}
	self, err := os.Executable()
	if err != nil {
		self = "wasmplane"
	}
	return self + " kubectl"
}

func (a *app) down() *cobra.Command {
	var s settings
	var purge, force bool
	c := &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster and remove every container, mount and network of it",
		Long: `Stop the cluster, also when its control plane no longer runs, and remove from
this host every container, network namespace, mount, nftables table, bridge and
cgroup of it. The data stay, and the next up brings the pods back; with --purge
the data go too.

A machine that has joined others leaves them: its node goes, and a server's part of the
store with the keys. A server without which too few would be left does not go.`,
		Args: shell.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := s.Dir()
			if err != nil {
				return err
			}
			if !dir.Exists() {
				fmt.Fprintln(a.Out, "There is no cluster in", dir)
				return nil
			}
			return a.runDown(c.Context(), dir, purge, force, func(ctx context.Context) error {
				_, err := stopInstance(ctx, dir)
				return err
			})
		},
	}
	s.Access = a.DataDir(c.Flags())
	c.Flags().BoolVar(&force, "force", false, "of a server: do not ask the others, which go on counting it until node remove")
	c.Flags().BoolVar(&purge, "purge", false, "remove the data as well: certificates, objects, images, logs")
	return c
}

// runDown takes the cluster of a directory off this machine, whose process stop ends.
func (a *app) runDown(ctx context.Context, dir datadir.Dir, purge, force bool, stop func(context.Context) error) error {
	var leaving *members.Leaving
	if !force {
		var err error
		if leaving, err = members.ServerLeaves(ctx, dir); err != nil {
			return err
		}
	}
	p := &progress.Printer{W: a.Out}
	leave := func(ctx context.Context) error { return leaving.Leave(ctx, p.PrintLine) }
	steps := []func(context.Context) error{leave, stop}
	if leaving.EndsFirst() {
		steps = []func(context.Context) error{stop, leave}
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	logger, err := newLogger(a.Err, &settings{logLevel: "warn", format: "text"})
	if err != nil {
		return err
	}
	if err := members.Leave(ctx, dir, p.PrintLine); err != nil {
		p.PrintLine("error: " + err.Error())
	}
	if err := machine.Down(ctx, dir, purge, logger, p.PrintLine); err != nil {
		return err
	}
	if err := leaving.Forget(); err != nil {
		return err
	}
	fmt.Fprintln(a.Out, "The cluster is down.")
	return nil
}
