// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
)

var pluginName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`)

// pluginSwitches switch a plugin off and on again in the data directory: also with
// the server down, which a plugin that locks everybody out may make necessary.
func (a commands) switches() []*cobra.Command {
	return []*cobra.Command{
		a.switchTo("disable", "Switch a plugin off, with the server up or down", `Switch a plugin off: it is not loaded and not asked, wherever its entry comes from
(the configuration or the API). A server that runs follows at once; one that is
down leaves the plugin out when it comes up. Use it for a plugin that locks
everybody out. "wasmplane plugin enable NAME" undoes it.`, disablePlugin),
		a.switchTo("enable", "Switch a plugin on again that was disabled", `Undo "wasmplane plugin disable NAME".`, enablePlugin),
	}
}

func (a commands) switchTo(verb, short, long string, do func(dir, name string) (string, error)) *cobra.Command {
	var access *shell.Access
	c := &cobra.Command{
		Use:   verb + " NAME",
		Short: short,
		Long:  long,
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := access.Dir()
			if err != nil {
				return err
			}
			name := args[0]
			if !pluginName.MatchString(name) {
				return fmt.Errorf("%q is no plugin's name: lower-case letters, digits, dashes and dots were expected", name)
			}
			if !dir.Exists() {
				return fmt.Errorf("there is no cluster in %s; name its directory with --data-dir", dir)
			}
			said, err := do(dir.DisabledPlugins(), name)
			if err != nil {
				return err
			}
			fmt.Fprintln(a.Out, said)
			return nil
		},
	}
	access = a.DataDir(c.Flags())
	return c
}

func disablePlugin(dir, name string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("disable plugin %s: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
		return "", fmt.Errorf("disable plugin %s: %w", name, err)
	}
	return fmt.Sprintf("plugin %s is disabled; enable it with: wasmplane plugin enable %s", name, name), nil
}

func enablePlugin(dir, name string) (string, error) {
	err := os.Remove(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("plugin %s was not disabled", name), nil
	}
	if err != nil {
		return "", fmt.Errorf("enable plugin %s: %w", name, err)
	}
	return fmt.Sprintf("plugin %s is enabled", name), nil
}
