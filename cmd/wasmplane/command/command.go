// SPDX-License-Identifier: Apache-2.0

// Package command is wasmplane's command line: flags, environment and the
// configuration file become one checked configuration, and package wire does the
// work. What users read is written here.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/debug"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/explain"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/kubectltexts"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/plugin"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/simulation"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/strictyaml"
	"github.com/wasmplane/wasmplane/core/zpages"
)

// Version of this build, set by the linker.
var Version = "unknown"

// Main runs the command line and returns the process's exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	if kubectltexts.IsKubectl(args) {
		return runKubectl(args[1:], stderr)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot(stdout, stderr)
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		var quiet *shell.ExitError
		if errors.As(err, &quiet) {
			return quiet.Code
		}
		fmt.Fprintln(stderr, "error:", advised(err))
		return 1
	}
	return 0
}

// app is what every command shares.
type app struct{ *shell.Shell }

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	a := &app{shell.New(os.Stdin, stdout, stderr)}
	root := &cobra.Command{
		Use:   "wasmplane",
		Short: "A Kubernetes-compatible control plane whose policy is WebAssembly",
		Long: `wasmplane is a Kubernetes-compatible control plane in one binary. Admission,
authorization, scheduling, reconcile and node admission can be handed to
sandboxed WebAssembly modules that a configuration loads.

Start with:
  wasmplane up                          on Linux, as root: real containers
  wasmplane up --nodes simulated:3      anywhere: simulated nodes, for trying plugins

Every flag can also be set by an environment variable: --data-dir is
WASMPLANE_DATA_DIR.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddGroup(
		&cobra.Group{ID: "cluster", Title: "A whole cluster:"},
		&cobra.Group{ID: "use", Title: "Using it:"},
		&cobra.Group{ID: "component", Title: "Components, one by one:"},
	)
	of := a.members()
	for group, commands := range map[string][]*cobra.Command{
		"cluster": {
			a.up(), of.Join(), of.Agent(), of.Token(), of.Node(), of.Certs(), a.status(), a.stop(), a.down(), a.install(), a.uninstall(),
			a.upgrade(), a.backup(), a.restore(), a.check(), a.support(), a.airgap(),
		},
		"use": {
			a.kubectl(), plugin.Command(a.Shell), a.trace(), explain.Command(a.Shell), simulation.Command(a.Shell),
			simulation.RecordCommand(a.Shell), a.image(),
			debug.Command(a.Shell), a.version(),
		},
		"component": a.components(),
	} {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
			if c.Name() != "kubectl" { // which speaks for itself
				finish(c)
			}
		}
	}
	isGroup(root)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w; see: %s --help", err, c.CommandPath())
	})
	return root
}

// finish gives a command and those below it what all have: a sentence of help, and
// usage that is told when arguments are missing or too many.
func finish(c *cobra.Command) {
	if c.Long == "" {
		c.Long = c.Short + "."
	}
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return fmt.Errorf("%w; usage: %s", err, c.UseLine())
			}
			return nil
		}
	}
	if c.HasSubCommands() && !c.Runnable() {
		isGroup(c)
	}
	for _, below := range c.Commands() {
		finish(below)
	}
}

// isGroup makes c a command that only holds others: alone it tells which, and a word
// that is none of them is a mistake (cobra would print the help and succeed).
func isGroup(c *cobra.Command) {
	c.DisableFlagsInUseLine = true
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		meant := ""
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			meant = fmt.Sprintf(" (did you mean %s?)", strings.Join(near, " or "))
		}
		return fmt.Errorf("unknown command %q for %q%s; see: %s --help", args[0], c.CommandPath(), meant, c.CommandPath())
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
}

// settings are the flags that lie over the configuration file.
type settings struct {
	*shell.Access
	file, logLevel, format string
	flags                  *pflag.FlagSet // all of the command
}

// values of the command's flags, by which the process was started.
func (s *settings) values() zpages.Flags {
	out := zpages.Flags{}
	if s.flags != nil {
		s.flags.VisitAll(func(f *pflag.Flag) { out[f.Name] = f.Value.String() })
	}
	return out
}

func (a *app) addSettings(f *pflag.FlagSet, s *settings) {
	s.Access, s.flags = a.DataDir(f), f
	f.StringVar(&s.file, "config", "", "configuration `FILE`; configs/ has commented ones")
	f.StringVar(&s.logLevel, "log-level", "info", "least `LEVEL` of what is logged: debug, info, warn or error")
	f.StringVar(&s.format, "log-format", "text", "`FORMAT` of the log: text or json")
	f.String("cluster-name", "", "`NAME` of the cluster; the names of everything that it takes on this host follow from it (default: the one that the data directory records, else wasmplane)")
}

// addAirgap adds the flag of an archive to begin with.
func (a *app) addAirgap(f *pflag.FlagSet) {
	f.String("airgap", "", "`FILE` of an archive of wasmplane airgap create that is taken over first (airgap.file)")
}

// addServer adds the flags of what serves the API.
func (a *app) addServer(f *pflag.FlagSet) {
	f.String("listen", "", "`HOST:PORT` of the API; port 0 chooses one (default 127.0.0.1:6443)")
	f.String("etcd-endpoints", "", "comma-separated `URLS` of an external etcd (default: etcd in this process)")
	f.String("enable-admission-plugins", "", "comma-separated `NAMES` of built-in admission plugins that are off by default, such as AlwaysPullImages")
	f.String("disable-admission-plugins", "", "comma-separated `NAMES` of built-in admission plugins to leave out")
}

// overrides are the scalars of the configuration that a flag or a variable sets.
var overrides = []struct {
	flag, path string
	set        func(*config.Configuration, string) error
}{
	{"cluster-name", "cluster.name", func(c *config.Configuration, v string) error { c.Cluster.Name = v; return nil }},
	{"airgap", "airgap.file", func(c *config.Configuration, v string) (err error) {
		if v != "" { // where the command runs, not where the configuration lies
			v, err = filepath.Abs(v)
		}
		c.Airgap.File = v
		return err
	}},
	{"listen", "apiserver.listen", func(c *config.Configuration, v string) error { c.APIServer.Listen = v; return nil }},
	{"nodes", "node.mode", func(c *config.Configuration, v string) (err error) {
		c.Node.Mode, err = config.ParseNodeMode(v)
		return err
	}},
	{"node-name", "node.name", func(c *config.Configuration, v string) error { c.Node.Name = v; return nil }},
	{"etcd-endpoints", "store.endpoints", func(c *config.Configuration, v string) error { c.Store.Endpoints = splitList(v); return nil }},
	{"enable-admission-plugins", "apiserver.enableAdmissionPlugins", func(c *config.Configuration, v string) error {
		c.APIServer.EnableAdmissionPlugins = splitList(v)
		return nil
	}},
	{"disable-admission-plugins", "apiserver.disableAdmissionPlugins", func(c *config.Configuration, v string) error {
		c.APIServer.DisableAdmissionPlugins = splitList(v)
		return nil
	}},
}

// load makes the configuration: defaults, then the file, then variables, then flags. A data
// directory that has a cluster keeps its name.
func (a *app) load(f *pflag.FlagSet, s *settings) (*config.Configuration, error) {
	if err := a.FromEnvironment(f); err != nil {
		return nil, err
	}
	cfg := config.Default()
	if s.file != "" {
		loaded, err := config.LoadFile(s.file)
		if err != nil {
			return nil, err
		}
		cfg = loaded
	}
	for _, o := range overrides {
		if flag := f.Lookup(o.flag); flag != nil && flag.Changed {
			if err := o.set(cfg, flag.Value.String()); err != nil {
				return nil, fmt.Errorf("--%s: %w", o.flag, err)
			}
		}
	}
	if cfg.Node.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("find this host's name: %w; give the node one with node.name", err)
		}
		cfg.Node.Name = host
	}
	if err := keepName(cfg, f, s); err != nil {
		return nil, err
	}
	return cfg, blame(cfg.Complete(), f)
}

// keepName takes over the name that the data directory records, before anything derives from the
// name: what goes by the recorded one on this machine could not be found by another.
func keepName(cfg *config.Configuration, f *pflag.FlagSet, s *settings) error {
	dir, err := s.Dir()
	if err != nil {
		return err
	}
	by := ""
	if flag := f.Lookup("cluster-name"); flag != nil && flag.Changed {
		by = "--cluster-name"
	} else if cfg.Cluster.Name != config.Default().Cluster.Name {
		by = "cluster.name in " + s.file
	}
	recorded, err := dir.Cluster()
	switch {
	case errors.Is(err, fs.ErrPermission): // whoever works in the directory is told by its opening
		return nil
	case err != nil && by == "":
		return fmt.Errorf("%w; say which cluster it is by --cluster-name, and what is there is written anew", err)
	case err != nil || recorded == "" || recorded == cfg.Cluster.Name:
		return nil //nolint:nilerr // a record that cannot be read is written anew by the name that was said
	case by != "":
		return fmt.Errorf("%s is %q, but the data directory %s holds the cluster %q, by whose name its containers, network and rules on this machine go: leave the name out (or say %s), choose another --data-dir for another cluster, or remove this one first (wasmplane down --purge --data-dir %s)",
			by, cfg.Cluster.Name, dir, recorded, recorded, dir)
	}
	cfg.Cluster.Name = recorded
	return nil
}

// loadWithDir is load, for commands that work in the data directory besides.
func (a *app) loadWithDir(f *pflag.FlagSet, s *settings) (*config.Configuration, datadir.Dir, error) {
	cfg, err := a.load(f, s)
	if err != nil {
		return nil, "", err
	}
	dir, err := s.Dir()
	return cfg, dir, err
}

// blame names the flag that a wrong value came by; all others are in the file.
func blame(err error, f *pflag.FlagSet) error {
	var wrong *strictyaml.FieldError
	if !errors.As(err, &wrong) {
		return err
	}
	for _, o := range overrides {
		if flag := f.Lookup(o.flag); o.path == wrong.Path && flag != nil && flag.Changed {
			return fmt.Errorf("--%s: %s", o.flag, wrong.Problem)
		}
	}
	return err
}

func newLogger(w io.Writer, s *settings) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return nil, fmt.Errorf("--log-level: expected debug, info, warn or error, found %q", s.logLevel)
	}
	options := &slog.HandlerOptions{Level: level}
	switch s.format {
	case "text":
		return adopt(slog.New(slog.NewTextHandler(w, options))), nil
	case "json":
		return adopt(slog.New(slog.NewJSONHandler(w, options))), nil
	}
	return nil, fmt.Errorf("--log-format: expected text or json, found %q", s.format)
}

// adopt makes logger the one of client-go too, which logs through package-level
// state of klog.
func adopt(logger *slog.Logger) *slog.Logger {
	klog.SetSlogLogger(logger)
	return logger
}
