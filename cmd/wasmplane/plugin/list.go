// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

func (a commands) list() *cobra.Command {
	var access *shell.Access
	var file, output string
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the plugins: of the configuration file, of the API, of namespaces",
		Long: `List the plugins of a cluster: those of the configuration file, of the API (kind
Plugin) and of namespaces (kind TenantPlugin), with what became of them in all
processes.

STATE is ready, outdated (a version answers, and it is not the entry's: its load
failed), failed (none answers; the failure policy decides), refused (the object
is no entry), not asked (no running process asks at its points) or disabled.
BREAKER is open where a process leaves the plugin alone because it failed many
times in a row.

With --config the entries of a configuration file are listed, with the server up
or down: modules that are local files are loaded as a server would, and asked
what they are.`,
		Example: `  wasmplane plugin list
  wasmplane plugin list -o wide
  wasmplane plugin list --config cluster.yaml     with the server down`,
		Args: shell.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := access.Dir()
			if err != nil {
				return err
			}
			var list []apiobject.Listed
			if file != "" {
				list, err = listFile(c.Context(), file, dir)
			} else {
				list, err = listCluster(c, access)
			}
			if err != nil {
				return err
			}
			list = markDisabled(list, dir)
			switch output {
			case "json", "yaml":
				return a.Show(list, output)
			}
			return a.showPlugins(list, output == "wide")
		},
	}
	access = a.Access(c.Flags())
	c.Flags().StringVar(&file, "config", "", "configuration `FILE` whose entries are listed, without asking a server")
	shell.OutputFlag(c, &output, "wide", "json", "yaml")
	return c
}

// listCluster lists what a running cluster tells of its plugins.
func listCluster(c *cobra.Command, access *shell.Access) ([]apiobject.Listed, error) {
	list, err := func() ([]apiobject.Listed, error) {
		set, err := access.Client("plugin")
		if err != nil {
			return nil, err
		}
		return apiobject.List(c.Context(), set.Dynamic)
	}()
	if err != nil {
		return nil, fmt.Errorf("%w; with the server down, --config FILE lists what its configuration holds", err)
	}
	return list, nil
}

// listFile lists the entries of a file. Local modules are asked what they are, by the
// means of a server, in its cache where there is one.
func listFile(ctx context.Context, file string, dir datadir.Dir) ([]apiobject.Listed, error) {
	cfg, err := config.LoadFile(file)
	if err != nil {
		return nil, err
	}
	entries, err := manifest.OfFile(cfg)
	if err != nil {
		return nil, err
	}
	cache := ""
	if dir.Exists() {
		cache = dir.PluginCache()
	}
	var out []apiobject.Listed
	for _, e := range entries {
		l := apiobject.Listed{
			Name: e.Name, Origin: apiobject.FromFile, Source: e.Source, Digest: e.Digest, Mode: string(e.Mode),
			Points: e.Points, State: "not looked at",
		}
		switch {
		case e.Disabled:
			l.State = "disabled"
		case e.Group != nil:
			l.Source = "group"
		case strings.HasPrefix(e.Source, "file:"):
			describe(ctx, &l, author.Config{Entry: e, Dir: filepath.Dir(file), CacheDir: cache})
		default:
			l.Message = "a module that is fetched is looked at by the server, or by `wasmplane plugin pull`"
		}
		out = append(out, l)
	}
	return out, nil
}

// describe loads a module, and says what it is.
func describe(ctx context.Context, l *apiobject.Listed, cfg author.Config) {
	p, err := author.Open(ctx, cfg)
	if err != nil {
		l.State, l.Message = "failed", err.Error()
		return
	}
	l.State, l.Digest, l.Version, l.Points = "loads", p.Digest(), p.Manifest().Version, nil
	for _, pt := range p.Points() {
		l.Points = append(l.Points, string(pt))
	}
	if err := p.Close(ctx); err != nil {
		l.Message = err.Error()
	}
}

// markDisabled marks what `wasmplane plugin disable` switched off in the data
// directory; a running server shows nothing of such an entry of its file.
func markDisabled(list []apiobject.Listed, dir datadir.Dir) []apiobject.Listed {
	off, err := os.ReadDir(dir.DisabledPlugins())
	if err != nil {
		return list // there is no such folder: nothing is switched off
	}
	for _, f := range off {
		is := slices.IndexFunc(list, func(l apiobject.Listed) bool { return l.Namespace == "" && l.Name == f.Name() })
		if is < 0 {
			list, is = append(list, apiobject.Listed{Name: f.Name(), Origin: "-"}), len(list)
		}
		list[is].State, list[is].Message = "disabled", "by `wasmplane plugin disable`"
	}
	return list
}

func (a commands) showPlugins(list []apiobject.Listed, wide bool) error {
	if len(list) == 0 {
		a.PrintLine("There are no plugins.") // beside stdout, as kubectl does
		return nil
	}
	w := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
	header := "NAME\tORIGIN\tPOINTS\tMODE\tSTATE\tBREAKER\tCALLS\tDENIALS"
	if wide {
		header += "\tFAILURES\tTIME\tVERSION\tSOURCE\tDIGEST\tMESSAGE"
	}
	fmt.Fprintln(w, header)
	for _, l := range list {
		name, breaker := l.Name, "closed"
		if l.Namespace != "" {
			name = l.Namespace + "/" + l.Name
		}
		if l.BreakerOpen {
			breaker = "open"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d", name, l.Origin, cmp.Or(strings.Join(l.Points, ","), "-"), cmp.Or(l.Mode, "-"), l.State,
			breaker, l.Calls, l.Denials)
		if wide {
			fmt.Fprintf(w, "\t%d\t%s\t%s\t%s\t%s\t%s", l.Failures, cmp.Or(l.MeanTime, "-"), cmp.Or(l.Version, "-"), cmp.Or(l.Source, "-"),
				cmp.Or(l.Digest, "-"), l.Message)
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}
