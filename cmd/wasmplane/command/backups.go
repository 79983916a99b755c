// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/backup"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/backup/place"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
	"github.com/wasmplane/wasmplane/core/store/etcd/snapshotfile"
)

func (a *app) backupList() *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:   "list",
		Short: "List the backups of the configuration's schedule, and those that upgrades have taken",
		Args:  shell.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o, _, err := a.stored(c, &s)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "TAKEN\tSIZE\tNAME\tPLACE")
			list := func(found []place.Item, in place.Place) {
				for _, i := range found {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", i.Modified.UTC().Format(time.RFC3339), size(i.Bytes), i.Name, in)
				}
			}
			in, err := place.Of(o.Config)
			if err != nil {
				return err
			}
			if in != nil {
				found, err := backup.List(c.Context(), in, o.Config.Cluster.Name)
				if err != nil {
					return err
				}
				list(found, in)
			}
			own := place.Folder(o.Dir.Backups())
			found, err := own.List(c.Context(), "before-")
			if err != nil {
				return err
			}
			list(found, own)
			return w.Flush()
		},
	}
	a.addStored(c, &s)
	return c
}

func (a *app) backupFetch() *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:   "fetch NAME FILE",
		Short: "Copy a backup from where the schedule keeps it to a file, and read it through",
		Args:  cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			o, _, err := a.stored(c, &s)
			if err != nil {
				return err
			}
			in, err := place.Of(o.Config)
			if err != nil {
				return err
			}
			if in == nil {
				return errors.New("the configuration names no place for backups: give the server's by --config")
			}
			if _, err := os.Lstat(args[1]); err == nil {
				return fmt.Errorf("%s exists; choose another name", args[1])
			}
			file, err := filepath.Abs(args[1])
			if err != nil {
				return err
			}
			if err := atomicfile.WriteFrom(file, 0o600, func(w io.Writer) error { return in.Get(c.Context(), args[0], w) }); err != nil {
				return err
			}
			info, err := snapshotfile.Check(file)
			if err != nil {
				return errors.Join(err, os.Remove(file))
			}
			fmt.Fprintf(a.Out, "Fetched revision %d, %d keys, %s to %s.\n", info.Revision, info.Keys, size(info.Bytes), args[1])
			return nil
		},
	}
	a.addStored(c, &s)
	return c
}
