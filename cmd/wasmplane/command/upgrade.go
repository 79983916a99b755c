// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/upgrade"
)

func (a *app) upgrade() *cobra.Command {
	o := upgrade.Options{Report: func(text string) { fmt.Fprintln(a.Out, text) }}
	c := &cobra.Command{
		Use:   "upgrade --to FILE",
		Short: "Replace the binary of this machine's cluster, and go back by itself if the new one does not do",
		Long: `Replace the binary that this machine's server or worker runs by FILE, a binary or the
archive of a release, which SHA256SUMS beside it (or --sha256, or --key) vouches for. One
machine after the other: the servers first, then the workers.

What can be checked is checked before anything is changed: that the new binary runs here,
that its versions follow those of today, that all other servers are ready and reach each
other's stores, and that no server or kubelet would be too far from the others. Then the store is
saved in DATA_DIR/backups, the binary replaced (the former one stays beside it, as
NAME.previous), and the process started anew: by its supervisor, by --restart, or, where
nobody looks after it, in the background. Pods go on. If the new process is not healthy in
time, or does not stay so, the former binary is put back and started.`,
		Example: `  wasmplane upgrade --to wasmplane-v0.2.0-linux-amd64.tar.gz
  wasmplane upgrade --to wasmplane-v0.2.0-linux-amd64.tar.gz --key release.pub`,
		Args: shell.NoArgs,
	}
	access := a.DataDir(c.Flags())
	c.Flags().StringVar(&o.File, "to", "", "`FILE` of the new binary, or of a release's archive (required)")
	c.Flags().StringVar(&o.SHA256, "sha256", "", "`DIGEST` that FILE must have (default: what SHA256SUMS beside it says)")
	c.Flags().StringVar(&o.Key, "key", "", "`FILE` of the public key whose signature FILE.sig must be")
	c.Flags().StringVar(&o.Restart, "restart", "", "`COMMAND` that starts the process anew, where another supervisor than systemd and OpenRC looks after it")
	c.Flags().DurationVar(&o.Timeout, "timeout", 5*time.Minute, "`TIME` in which the new process has to become healthy")
	c.Flags().DurationVar(&o.Stable, "stable", 10*time.Second, "`TIME` for which it has to stay healthy")
	c.RunE = func(c *cobra.Command, _ []string) error {
		dir, err := access.Dir()
		if err != nil {
			return err
		}
		if o.File == "" {
			return errors.New("name the new binary: wasmplane upgrade --to FILE")
		}
		if !dir.Exists() {
			return fmt.Errorf("there is no cluster in %s", dir)
		}
		o.Dir = dir
		o.Stop = func(ctx context.Context) error {
			_, err := stopInstance(ctx, dir)
			return err
		}
		if o.Cluster, err = upgrade.ClusterOf(dir, 2*o.Timeout+time.Minute); err != nil {
			return err
		}
		return upgrade.Run(c.Context(), o)
	}
	return c
}
