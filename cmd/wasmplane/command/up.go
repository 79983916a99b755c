// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/progress"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/wire"
	"github.com/wasmplane/wasmplane/core/config"
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
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := a.load(c.Flags(), &s)
			if err != nil {
				return err
			}
			return a.runUp(c.Context(), cfg, &s, merge)
		},
	}
	a.addSettings(c.Flags(), &s)
	c.Flags().String("nodes", "", "`NODES` to run: real (this machine), simulated:N or none (default real)")
	c.Flags().String("node-name", "", "`NAME` of the real node (default: the host's name)")
	a.addServer(c.Flags())
	c.Flags().BoolVar(&merge, "merge-kubeconfig", false, "put a context named after the cluster into your own kubeconfig; down --purge takes it out again")
	return c
}

func (a *app) runUp(ctx context.Context, cfg *config.Configuration, s *settings, merge bool) error {
	dir, err := datadir.Open(s.dataDir, func(notice string) { fmt.Fprintln(a.stdout, notice) })
	if err != nil {
		return err
	}
	lock, err := dir.Lock()
	if err != nil {
		return err
	}
	defer lock.Release()
	log, err := os.OpenFile(dir.Log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	defer func() { _ = log.Close() }()
	logger, err := newLogger(log, s)
	if err != nil {
		return err
	}
	begin := time.Now()
	fmt.Fprintf(a.stdout, "wasmplane %s: starting cluster %q in %s (log: %s)\n", Version, cfg.Cluster.Name, dir, dir.Log())
	p := &progress.Printer{W: a.stdout, Log: dir.Log()}
	defer p.Stop()
	err = wire.Up(ctx, wire.Options{
		Config: cfg, Dir: dir, Logger: logger, Progress: p.Report, Note: p.PrintLine, Version: Version,
		MergeKubeconfig: mergeTarget(merge),
	}, func(i wire.Info) {
		a.announce(i, dir, time.Since(begin), merge)
		if err := notifyReady(); err != nil {
			logger.WarnContext(ctx, "service manager was not notified", "error", err)
		}
	})
	switch {
	case ctx.Err() != nil && err == nil:
		fmt.Fprintln(a.stdout, "The control plane has stopped."+leftRunning(cfg))
		return nil
	case err != nil:
		return fmt.Errorf("%w\n(the log is %s)", err, dir.Log())
	}
	return nil
}

// notifyReady ends the waiting of a service manager that started us (systemd's
// Type=notify); without one it does nothing. No child inherits the socket.
func notifyReady() error {
	_, err := daemon.SdNotify(true, daemon.SdNotifyReady)
	return err
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
	fmt.Fprint(a.stdout, b.String())
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

func (a *app) stop() *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:   "stop",
		Short: "Stop the control plane and leave pods running",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := a.dir(c.Flags(), &s)
			if err != nil {
				return err
			}
			stopped, err := stopInstance(c.Context(), dir)
			if err != nil {
				return err
			}
			if !stopped {
				fmt.Fprintln(a.stdout, "Nothing runs in", dir)
			}
			return nil
		},
	}
	a.addDataDir(c.Flags(), &s)
	return c
}

// stopInstance ends the process that has the directory and waits for its end.
func stopInstance(ctx context.Context, dir datadir.Dir) (bool, error) {
	if !dir.Exists() {
		return false, nil
	}
	pid, err := dir.Owner()
	if err != nil || pid == 0 {
		return false, err
	}
	process, err := os.FindProcess(pid)
	if err == nil {
		err = process.Signal(os.Interrupt)
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return false, fmt.Errorf("stop process %d: %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return true, dir.AwaitRelease(ctx.Done())
}

func (a *app) down() *cobra.Command {
	var s settings
	var purge bool
	c := &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster and remove every container, mount and network of it",
		Long: `Stop the cluster, also when its control plane no longer runs, and remove from
this host every container, network namespace, mount, nftables table, bridge and
cgroup of it. The data stay, and the next up brings the pods back; with --purge
the data go too.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := a.dir(c.Flags(), &s)
			if err != nil {
				return err
			}
			if !dir.Exists() {
				fmt.Fprintln(a.stdout, "There is no cluster in", dir)
				return nil
			}
			if _, err := stopInstance(c.Context(), dir); err != nil {
				return err
			}
			logger, err := newLogger(a.stderr, &settings{logLevel: "warn", format: "text"})
			if err != nil {
				return err
			}
			p := &progress.Printer{W: a.stdout}
			if err := machine.Down(c.Context(), dir, purge, logger, p.PrintLine); err != nil {
				return err
			}
			fmt.Fprintln(a.stdout, "The cluster is down.")
			return nil
		},
	}
	a.addDataDir(c.Flags(), &s)
	c.Flags().BoolVar(&purge, "purge", false, "remove the data as well: certificates, objects, images, logs")
	return c
}
