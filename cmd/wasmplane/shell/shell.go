// SPDX-License-Identifier: Apache-2.0

// Package shell is what wasmplane's commands share: streams, variables in the place of
// flags, which data directory and which cluster is meant, formats of output, exit codes.
package shell

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/client"
)

// Shell is what every command is given.
type Shell struct {
	In       io.Reader
	Out, Err io.Writer
	env      *viper.Viper
}

// New returns a shell whose variables are the process's.
func New(in io.Reader, out, err io.Writer) *Shell {
	s := &Shell{In: in, Out: out, Err: err, env: viper.New()}
	s.env.SetEnvPrefix("WASMPLANE")
	s.env.SetEnvKeyReplacer(strings.NewReplacer("-", "_"))
	s.env.AutomaticEnv()
	return s
}

// FromEnvironment sets every flag that was not given from its variable.
func (s *Shell) FromEnvironment(f *pflag.FlagSet) error {
	var errs []error
	f.VisitAll(func(flag *pflag.Flag) {
		if value := s.env.GetString(flag.Name); !flag.Changed && value != "" {
			if err := f.Set(flag.Name, value); err != nil {
				errs = append(errs, fmt.Errorf("environment variable WASMPLANE_%s: %w", strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_")), err))
			}
		}
	})
	return errors.Join(errs...)
}

// PrintLine tells the person at the terminal what is no part of the output.
func (s *Shell) PrintLine(text string) { fmt.Fprintln(s.Err, text) }

// Show prints v as YAML or JSON.
func (s *Shell) Show(v any, output string) error {
	if output == "json" {
		enc := json.NewEncoder(s.Out)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	b, err := json.Marshal(v) // the names of the fields are those of JSON
	if err != nil {
		return err
	}
	var tree yaml.Node
	if err := yaml.Unmarshal(b, &tree); err != nil {
		return err
	}
	plainStyle(&tree)
	enc := yaml.NewEncoder(s.Out)
	enc.SetIndent(2)
	return enc.Encode(&tree)
}

// plainStyle makes YAML of what was read from JSON look like YAML.
func plainStyle(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		plainStyle(c)
	}
}

// OutputFlag adds -o with the formats that a command knows besides its text.
func OutputFlag(c *cobra.Command, output *string, formats ...string) {
	c.Flags().StringVarP(output, "output", "o", "", "`FORMAT`: "+strings.Join(formats, " or ")+" (default: text for people)")
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if *output == "" || slices.Contains(formats, *output) {
			return run(c, args)
		}
		return fmt.Errorf("-o: expected %s, found %q", strings.Join(formats, " or "), *output)
	}
}

// ExitError ends the process with a code and without a further message.
type ExitError struct{ Code int }

// Error implements error.
func (e *ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// NoArgs is for commands that take flags only.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("takes no arguments, found %q", args[0])
	}
	return nil
}

// Access is the data directory and the cluster that a command works with, by its flags.
type Access struct {
	shell               *Shell
	flags               *pflag.FlagSet
	dataDir, kubeconfig string
}

// DataDir adds the flag of the data directory.
func (s *Shell) DataDir(f *pflag.FlagSet) *Access {
	a := &Access{shell: s, flags: f}
	f.StringVar(&a.dataDir, "data-dir", string(datadir.Default()), "`DIR` that holds everything of the cluster")
	return a
}

// Access adds the flags that say which cluster is asked.
func (s *Shell) Access(f *pflag.FlagSet) *Access {
	a := s.DataDir(f)
	f.StringVar(&a.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` (default: $KUBECONFIG, then the data directory's)")
	return a
}

// Dir is the data directory, whether it is there or not.
func (a *Access) Dir() (datadir.Dir, error) {
	if err := a.shell.FromEnvironment(a.flags); err != nil {
		return "", err
	}
	abs, err := filepath.Abs(a.dataDir)
	if err != nil {
		return "", fmt.Errorf("data directory %s: %w", a.dataDir, err)
	}
	return datadir.Dir(abs), nil
}

// Open makes the data directory ready for a process that works in it; notices say what
// was changed about it.
func (a *Access) Open(notice func(string)) (datadir.Dir, error) {
	dir, err := a.Dir()
	if err != nil {
		return "", err
	}
	return datadir.Open(string(dir), notice)
}

// Kubeconfig is the file of the cluster to ask: the one given, $KUBECONFIG's, or the data
// directory's.
func (a *Access) Kubeconfig() (string, error) {
	dir, err := a.Dir()
	if err != nil {
		return "", err
	}
	if path := cmp.Or(a.kubeconfig, os.Getenv("KUBECONFIG")); path != "" {
		return path, nil
	}
	if _, err := os.Stat(dir.Kubeconfig()); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s holds no cluster; start one with: wasmplane up --data-dir %s, or name one by --kubeconfig", dir, dir)
	}
	return dir.Kubeconfig(), nil
}

// Client reaches the cluster to ask; the command's name is part of its user agent.
func (a *Access) Client(command string) (*client.Set, error) {
	path, err := a.Kubeconfig()
	if err != nil {
		return nil, err
	}
	return client.Open(path, command)
}
