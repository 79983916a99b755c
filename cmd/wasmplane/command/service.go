// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/supervisor"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join"
)

// serviceFlags say which service of which supervisor is meant.
type serviceFlags struct{ name, kind string }

func (f *serviceFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.name, "name", "wasmplane", "`NAME` of the service")
	flags.StringVar(&f.kind, "supervisor", "", "`SUPERVISOR` of this machine: systemd or openrc (default: the one that runs)")
}

func (f *serviceFlags) host() (*supervisor.Host, error) {
	if err := supervisor.CheckName(f.name); err != nil {
		return nil, err
	}
	return supervisor.Find("", supervisor.Kind(f.kind))
}

func (a *app) install() *cobra.Command {
	var s settings
	var which serviceFlags
	var show, noStart bool
	c := &cobra.Command{
		Use:   "install",
		Short: "Have this machine's supervisor run the cluster: at boot, and anew when it fails",
		Long: `Write a service for systemd or OpenRC, enable it, and start it. What it runs is this
binary with the flags (and variables) that are given here: wasmplane up; on a machine that
has joined as a worker, wasmplane agent; and where the configuration names a server to
join, wasmplane join. The service is started when the cluster is ready; it is started
anew when it fails and when it no longer answers; stopping it leaves pods running.

The same command again changes nothing; with other flags it changes the service and
starts it anew. wasmplane uninstall takes it away.`,
		Example: `  wasmplane install --listen :6443
  wasmplane install --config /etc/wasmplane/config.yaml
  wasmplane install --print --supervisor openrc`,
		Args: shell.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, dir, err := a.loadWithDir(c.Flags(), &s)
			if err != nil {
				return err
			}
			service, err := a.service(c.Flags(), cfg, dir, which.name)
			if err != nil {
				return err
			}
			host, err := which.host()
			if err != nil {
				return err
			}
			if show {
				text, err := host.Text(service)
				if err == nil {
					_, err = a.Out.Write(text)
				}
				return err
			}
			return a.runInstall(c.Context(), host, service, dir, !noStart)
		},
	}
	a.addSettings(c.Flags(), &s)
	a.addUp(c.Flags())
	which.add(c.Flags())
	c.Flags().BoolVar(&show, "print", false, "print the service, and change nothing")
	c.Flags().BoolVar(&noStart, "no-start", false, "do not start the service before the next boot")
	return c
}

// addUp adds the flags of up that the service hands on.
func (a *app) addUp(f *pflag.FlagSet) {
	f.String("nodes", "", "`NODES` to run: real (this machine), simulated:N or none (default real)")
	f.String("node-name", "", "`NAME` of the real node (default: the host's name)")
	a.addServer(f)
}

// service is what runs the cluster of a directory with the flags that were given.
func (a *app) service(given *pflag.FlagSet, cfg *config.Configuration, dir datadir.Dir, name string) (supervisor.Service, error) {
	binary, err := os.Executable()
	if err != nil {
		return supervisor.Service{}, fmt.Errorf("find out which program this is: %w", err)
	}
	work := "up"
	if _, err := join.Read(dir.Member()); err == nil {
		work = "agent"
	} else if cfg.Join.Server != "" {
		work = "join" // which carries on once it has joined
	}
	c, _, err := newRoot(a.Out, a.Err).Find([]string{work})
	if err != nil {
		return supervisor.Service{}, err
	}
	command := []string{binary, work, "--data-dir", string(dir)}
	own := map[string]bool{"data-dir": true, "name": true, "supervisor": true, "print": true, "no-start": true}
	given.Visit(func(f *pflag.Flag) {
		switch value := f.Value.String(); {
		case own[f.Name]:
		case c.Flags().Lookup(f.Name) == nil:
			err = errors.Join(err, fmt.Errorf("--%s is not for this machine, which runs `wasmplane %s`", f.Name, work))
		case f.Name == "config":
			abs, e := filepath.Abs(value)
			err = errors.Join(err, e)
			command = append(command, "--config", abs)
		default:
			command = append(command, "--"+f.Name, value)
		}
	})
	return supervisor.Service{Name: name, Command: command, Dir: string(dir)}, err
}

func (a *app) runInstall(ctx context.Context, host *supervisor.Host, service supervisor.Service, dir datadir.Dir, start bool) error {
	if os.Geteuid() != 0 {
		return errors.New("a service is installed by root: run this with sudo; --print shows what it would be")
	}
	if err := checkOwned(service); err != nil {
		return err
	}
	_, err := host.Installed(service.Name)
	if pid, e := dir.Owner(); e == nil && pid != 0 && start && errors.Is(err, supervisor.ErrNotInstalled) {
		return fmt.Errorf("process %d runs in %s, and the service would find the directory taken: end it first with `wasmplane stop --data-dir %s`; pods go on", pid, dir, dir)
	}
	changed, err := host.Install(ctx, service, start)
	if err != nil {
		return err
	}
	switch {
	case !changed:
		fmt.Fprintf(a.Out, "The service %s is installed already (%s).\n", service.Name, host.File(service.Name))
	case start:
		fmt.Fprintf(a.Out, "The service %s is installed (%s) and started.\n", service.Name, host.File(service.Name))
	default:
		fmt.Fprintf(a.Out, "The service %s is installed (%s); it starts at the next boot.\n", service.Name, host.File(service.Name))
	}
	fmt.Fprintf(a.Out, "It runs: %s\n", strings.Join(service.Command, " "))
	return nil
}

// checkOwned fails where others can change what a service runs, reads or keeps.
func checkOwned(service supervisor.Service) error {
	used := []string{service.Command[0], service.Dir}
	if at := slices.Index(service.Command, "--config"); at >= 0 {
		used = append(used, service.Command[at+1])
	}
	for _, path := range used {
		if err := supervisor.CheckOwned(path); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) uninstall() *cobra.Command {
	var which serviceFlags
	var purge, force bool
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Take down the cluster of the service that install has written, and remove the service",
		Long: `Take down the cluster of the service, as wasmplane down does: a machine that has joined
others leaves them first, containers, mounts and the network go, the data stay unless
--purge is given. Then remove the service. Nothing is removed that install has not
written; the binary stays.`,
		Args: shell.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.FromEnvironment(c.Flags()); err != nil {
				return err
			}
			host, err := which.host()
			if err != nil {
				return err
			}
			of, err := host.Installed(which.name)
			if errors.Is(err, supervisor.ErrNotInstalled) {
				fmt.Fprintf(a.Out, "There is no service %s that wasmplane install has written.\n", which.name)
				return nil
			}
			if err != nil {
				return err
			}
			dir := datadir.Dir(of)
			stop := func(ctx context.Context) error { return host.Stop(ctx, which.name) }
			if dir.Exists() {
				err = a.runDown(c.Context(), dir, purge, force, stop)
			} else {
				err = stop(c.Context())
			}
			if err != nil {
				return err
			}
			if err := host.Remove(c.Context(), which.name); err != nil {
				return err
			}
			fmt.Fprintf(a.Out, "The service %s is removed.\n", which.name)
			return nil
		},
	}
	which.add(c.Flags())
	c.Flags().BoolVar(&force, "force", false, "of a server: do not ask the others, which go on counting it until node remove")
	c.Flags().BoolVar(&purge, "purge", false, "remove the data as well: certificates, objects, images, logs")
	return c
}
