// SPDX-License-Identifier: Apache-2.0

package carry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/core/airgap"
	"github.com/wasmplane/wasmplane/core/join"
)

// shown is how many digits of an archive's name are printed; fewest is how many have to be given.
const shown, fewest = 12, 6

func (a Shell) list() *cobra.Command {
	c := &cobra.Command{
		Use:   "ls",
		Short: "List the archives that this machine has taken over",
		Args:  shell.NoArgs,
	}
	access := a.DataDir(c.Flags())
	c.RunE = func(*cobra.Command, []string) error {
		dir, err := access.Dir()
		if err != nil {
			return err
		}
		files, err := airgap.Kept(dir.Airgap())
		if err != nil {
			return err
		}
		t := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
		fmt.Fprintln(t, "ARCHIVE\tTAKEN OVER\tHOLDS")
		for _, file := range files {
			holds, at := "cannot be read: load it again, or remove it", "-"
			if info, err := os.Stat(file); err == nil {
				at = info.ModTime().Format(time.DateTime)
			}
			if kept, err := airgap.Open(file); err == nil {
				holds = contents(kept.List)
				_ = kept.Close() // it was only read
			}
			fmt.Fprintf(t, "%.*s\t%s\t%s\n", shown, filepath.Base(file), at, holds)
		}
		return t.Flush()
	}
	return c
}

func (a Shell) remove() *cobra.Command {
	c := &cobra.Command{
		Use:   "rm ARCHIVE",
		Short: "Remove an archive that was taken over, on a server from all machines of the cluster",
		Long: `Remove an archive that was taken over: by the first digits of its name, as
` + "`wasmplane airgap ls`" + ` prints it, or by its file. On a server, the other machines of the
cluster remove it, too, those that are away when they come back; on a worker, this one does.

Its images stay on the nodes while room is left for them and are unpinned, so that unused ones
are removed to make room. Its modules and manifests stay. To load the archive again is allowed.`,
		Example: `  wasmplane airgap rm 3f9a02c1b7d4
  wasmplane airgap rm /media/all.tar`,
		Args: cobra.ExactArgs(1),
	}
	configured := a.Configured(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, dir, err := configured()
		if err != nil {
			return err
		}
		name, err := keptAs(c.Context(), dir, args[0])
		if err != nil {
			return err
		}
		brought := hasManifests(filepath.Join(dir.Airgap(), name))
		if err := airgap.Remove(dir.Airgap(), name, 0); err != nil {
			return fmt.Errorf("remove archive %.*s: %w", shown, name, err)
		}
		where := "the other machines of the cluster do so, too"
		if _, err := join.Read(dir.Member()); err == nil {
			where = "the other machines keep it: remove it on a server to have it go from all"
		}
		fmt.Fprintf(a.Out, "removed %.*s; %s\n", shown, name, where)
		if folder := ManifestsOf(cfg, dir); folder != "" && brought {
			fmt.Fprintf(a.Out, "Manifests that it brought are still applied: take them out of %s.\n", folder)
		}
		return a.unpin(c.Context(), dir)
	}
	return c
}

func hasManifests(file string) bool {
	a, err := airgap.Open(file)
	if err != nil {
		return false
	}
	defer a.Close()
	return slices.ContainsFunc(a.Files, func(f airgap.File) bool { return f.Kind() == airgap.OfManifest })
}

// unpin has the node that runs let the archive's images go; one that does not run does so when it starts.
func (a Shell) unpin(ctx context.Context, dir datadir.Dir) error {
	owner, err := dir.NodeOwner()
	if err != nil || owner == 0 {
		return err
	}
	if err := machine.ImportArchives(ctx, dir, a.PrintLine); err != nil {
		return fmt.Errorf("the archive is removed, and its images may be pinned until the node is started anew: %w", err)
	}
	return nil
}

// keptAs finds an archive by its file, or by the first digits of the name under which it is kept.
func keptAs(ctx context.Context, dir datadir.Dir, what string) (string, error) {
	from, err := airgap.FileSource(what)
	switch {
	case err == nil:
		return airgap.NameOf(ctx, from)
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	case len(what) < fewest:
		return "", fmt.Errorf("there is no file %s; of an archive's name give %d digits or more, as `wasmplane airgap ls` prints them", what, fewest)
	}
	files, err := airgap.Kept(dir.Airgap())
	if err != nil {
		return "", err
	}
	var found []string
	for _, file := range files {
		if name := filepath.Base(file); strings.HasPrefix(name, what) {
			found = append(found, name)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%s has no archive %s, and there is no such file; `wasmplane airgap ls` lists those that it has", dir, what)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%d archives begin with %s: give more digits, as `wasmplane airgap ls` prints them", len(found), what)
}
