// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/plugins/rollout"
)

// pluginPromote puts a plugin's candidate in force.
func (a commands) promote() *cobra.Command {
	return a.step(rollout.Promote, &cobra.Command{
		Use:   "promote NAME",
		Short: "Put a plugin's candidate in force",
		Long: `Put a plugin's candidate in force, and keep what was in force as its previous
version. A candidate is another version that runs beside a plugin on live
requests (the entry's candidate field); its differing decisions stand in the
plugin's status: kubectl describe plugin NAME.

The running cluster follows at once. A version that cannot be loaded leaves the
one before it in force, and the status says why.`,
		Example: `  wasmplane plugin promote no-latest
  wasmplane plugin promote no-latest --config cluster.yaml    an entry of the configuration file`,
	})
}

// pluginRollback takes a candidate back, or what was promoted.
func (a commands) rollback() *cobra.Command {
	return a.step(rollout.Rollback, &cobra.Command{
		Use:   "rollback NAME",
		Short: "Drop a plugin's candidate, or put the version before it in force again",
		Example: `  wasmplane plugin rollback no-latest
  wasmplane plugin rollback no-latest --config cluster.yaml    an entry of the configuration file`,
	})
}

func (a commands) step(step rollout.Step, c *cobra.Command) *cobra.Command {
	var file string
	c.Args = cobra.ExactArgs(1)
	access := a.Access(c.Flags())
	c.Flags().StringVar(&file, "config", "", "configuration `FILE` whose entry is changed, instead of an object of the API")
	c.RunE = func(c *cobra.Command, args []string) error {
		var done rollout.Done
		var err error
		if file != "" {
			done, err = rollout.File(file, args[0], step)
		} else {
			done, err = rolloutObject(c, access, args[0], step)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(a.Out, "plugin %q: %s\n", args[0], done)
		return nil
	}
	return c
}

func rolloutObject(c *cobra.Command, access *shell.Access, name string, step rollout.Step) (rollout.Done, error) {
	set, err := access.Client("plugin")
	if err != nil {
		return "", fmt.Errorf("%w; --config names the configuration file where the plugin stands in one", err)
	}
	return rollout.Object(c.Context(), set.Dynamic, name, step)
}
