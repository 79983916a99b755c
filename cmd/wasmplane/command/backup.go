// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/backup"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/backup/partial"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/progress"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/store/etcd"
)

// defaultBump is more than a busy cluster writes in years between a backup and its restore.
const defaultBump = 1_000_000_000

func (a *app) backup() *cobra.Command {
	var s settings
	var kubeconfig string
	var force, keys bool
	c := &cobra.Command{
		Use:   "backup FILE",
		Short: "Save the cluster's state to a file",
		Long: `Save the cluster's state to FILE, as an etcd snapshot with its digest, and read
it through. A cluster that runs is asked for it (which takes cluster-admin);
of one that does not, the store is read where it lies.

What is encrypted at rest stays encrypted in FILE, and everything else is not:
keep it as you keep the cluster's secrets. Certificates, the keys that sign
tokens and the configuration are not in it; --with-keys saves the former two
beside it, in FILE.keys.tar.gz. Encryption keys are nowhere in either.`,
		Example: `  wasmplane backup /backups/monday.db --with-keys
  wasmplane backup --kubeconfig admin.kubeconfig monday.db`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o, running, err := a.stored(c, &s)
			if err != nil {
				return err
			}
			if o.Kubeconfig = kubeconfig; kubeconfig == "" && running {
				o.Kubeconfig = o.Dir.Kubeconfig()
			}
			return a.runBackup(c, o, args[0], force, keys)
		},
	}
	c.AddCommand(a.backupList(), a.backupFetch())
	a.addStored(c, &s)
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "ask the cluster of this kubeconfig `FILE` (default: that of the data directory)")
	c.Flags().BoolVar(&force, "force", false, "overwrite FILE")
	c.Flags().BoolVar(&keys, "with-keys", false, "also save certificates and signing keys, to FILE.keys.tar.gz")
	return c
}

func (a *app) runBackup(c *cobra.Command, o backup.Options, file string, force, keys bool) error {
	begin := time.Now()
	info, err := backup.Save(c.Context(), o, file, force, a.bytesSoFar())
	if err != nil {
		return err
	}
	fmt.Fprintf(a.Out, "Saved revision %d, %d keys, %s to %s in %s.\nsha256 %s\n", info.Revision, info.Keys, size(info.Bytes), file,
		progress.Short(time.Since(begin)), info.SHA256)
	if !keys {
		fmt.Fprintln(a.Out, "Not in it: certificates and signing keys (--with-keys), the configuration, encryption keys.")
		return nil
	}
	archive := file + ".keys.tar.gz"
	if err := backup.SaveKeys(o.Dir, archive, force); err != nil {
		return err
	}
	fmt.Fprintf(a.Out, "Saved certificates and signing keys to %s. Not in it: the configuration, encryption keys.\n", archive)
	return nil
}

// bytesSoFar tells a person every second how much there is.
func (a *app) bytesSoFar() func(int64) {
	last := time.Now()
	return func(n int64) {
		if now := time.Now(); now.Sub(last) >= time.Second {
			last = now
			fmt.Fprintf(a.Err, "  %s\n", size(n))
		}
	}
}

func (a *app) restore() *cobra.Command {
	var s settings
	var keys string
	var force, survive bool
	var part partial.Options
	var kubeconfig string
	var bump uint64
	var member etcd.Member
	var memberDir string
	c := &cobra.Command{
		Use:   "restore FILE | restore --from-this-member",
		Short: "Make a data directory's state out of a backup, or of the last server that is left",
		Long: `Make the state of a data directory out of FILE, which is an etcd snapshot of this
cluster, of another one, or of an upstream Kubernetes. The cluster must not run, on none of
its servers: this one is then its only one, and the others join anew.
A state that is there is kept under another name, and only with --force.

Resource versions move on by --bump, and everything before is marked as
compacted: clients that have seen states after the backup list anew instead of
going on in a past that did not happen.

Without the keys of the old cluster (--keys, or a pki folder that is there), new
ones are made: kubeconfigs and the tokens in running pods are then no longer
accepted, and token secrets have to be made anew.

Where several servers keep the store together and more than half of them are lost for
good, --from-this-member makes a cluster of this one server out of what it has; then
others join anew. Writes that only the lost ones had are gone.

With --namespace or --object only these objects come back, into the cluster that runs
(--kubeconfig), through its API and as new objects: those of controllers are made anew by
them, volumes' content is in no backup. What is there stays, unless --overwrite is given.

An external etcd is restored member by member, from the same FILE: with --member,
--initial-cluster and --member-dir, on each member's machine, this makes the data
directory that the member is then started with.`,
		Example: `  wasmplane stop
  wasmplane restore /backups/monday.db --force
  wasmplane up
  wasmplane restore /backups/monday.db --namespace shop --dry-run
  wasmplane restore /backups/monday.db --namespace shop --object configmap/prices --overwrite
  wasmplane restore /backups/monday.db --member m1 --member-dir /var/lib/etcd \
    --initial-cluster m1=https://10.0.0.1:2380,m2=https://10.0.0.2:2380,m3=https://10.0.0.3:2380`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if survive != (len(args) == 0) {
				return errors.New("name the FILE of a backup, or give --from-this-member")
			}
			if bump == 0 {
				return errors.New("--bump: expected at least 1; clients would otherwise be left in a past that did not happen")
			}
			if member.Name != "" || member.InitialCluster != "" || memberDir != "" {
				return a.runRestoreMember(c, args[0], memberDir, bump, member)
			}
			o, running, err := a.stored(c, &s)
			if err != nil {
				return err
			}
			if part.Namespace != "" || len(part.Objects) > 0 {
				part.File, part.Config = args[0], o.Config
				return a.runRestorePart(c, part, o, kubeconfig)
			}
			if part.DryRun || part.Overwrite || kubeconfig != "" {
				return errors.New("--dry-run, --overwrite and --kubeconfig are for --namespace and --object")
			}
			if running {
				pid, _ := o.Dir.Owner() //nolint:errcheck // only for the message
				return &datadir.InUseError{Dir: o.Dir, PID: pid}
			}
			if survive {
				return a.runSurvive(c, o, bump)
			}
			return a.runRestore(c.Context(), o, args[0], keys, bump, force)
		},
	}
	a.addStored(c, &s)
	c.Flags().BoolVar(&survive, "from-this-member", false, "go on with this server alone: the others, which kept the store with it, are lost for good")
	c.Flags().StringVar(&keys, "keys", "", "also restore certificates and signing keys from this `FILE` of backup --with-keys")
	c.Flags().BoolVar(&force, "force", false, "put a state (and, with --keys, keys) that is there aside")
	c.Flags().StringVar(&member.Name, "member", "", "`NAME` of the member of an external etcd to make a data directory for")
	c.Flags().StringVar(&member.InitialCluster, "initial-cluster", "", "all members of that etcd, as `NAME=PEER_URL,...`")
	c.Flags().StringVar(&member.Token, "initial-cluster-token", "etcd-cluster", "`TOKEN` that all its members are started with")
	c.Flags().StringVar(&memberDir, "member-dir", "", "`DIR` to make for the member")
	c.Flags().StringVar(&part.Namespace, "namespace", "", "bring back the objects of this `NAMESPACE` only, into the cluster that runs")
	c.Flags().StringArrayVar(&part.Objects, "object", nil, "bring back this `KIND/NAME` only (of --namespace, if it has one); may be given again")
	c.Flags().BoolVar(&part.DryRun, "dry-run", false, "with --namespace or --object: have the cluster say what would come of it, and change nothing")
	c.Flags().BoolVar(&part.Overwrite, "overwrite", false, "with --namespace or --object: replace what is there")
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "with --namespace or --object: the cluster of this kubeconfig `FILE` (default: that of the data directory)")
	c.Flags().Uint64Var(&bump, "bump", defaultBump, "how far resource versions move on, in `REVISIONS`")
	return c
}

func (a *app) runRestore(ctx context.Context, o backup.Options, file, keys string, bump uint64, force bool) error {
	begin := time.Now()
	if err := os.MkdirAll(string(o.Dir), 0o700); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	if keys != "" {
		aside, err := backup.RestoreKeys(o.Dir, keys, force)
		if err != nil {
			return err
		}
		a.printAside("keys", aside)
	}
	fmt.Fprintln(a.Out, "Reading", file, "through ...")
	aside, info, err := backup.Restore(ctx, o, file, bump, force)
	if err != nil {
		return err
	}
	a.printAside("state", aside)
	fmt.Fprintf(a.Out, "Restored revision %d, %d keys into %s in %s; resource versions go on at %d.\n", info.Revision, info.Keys, o.Dir,
		progress.Short(time.Since(begin)), uint64(info.Revision)+bump)
	if _, err := os.Stat(filepath.Join(o.Dir.PKI(), "ca.key")); err != nil {
		fmt.Fprintln(a.Out, "There are no keys in the data directory: new ones will be made, and kubeconfigs and tokens from before will not be accepted.")
	}
	fmt.Fprintf(a.Out, "Start it with: wasmplane up --data-dir %s\n", o.Dir)
	if around, err := join.ReadServer(o.Dir.Server()); err == nil && around.Address != "" {
		fmt.Fprintln(a.Out, "The store is this server's alone. Servers that kept it before belong to a cluster that is no more: run `wasmplane down --purge --force` on each, and have it join anew.")
	}
	return nil
}

// runRestorePart brings objects back into a cluster that runs.
func (a *app) runRestorePart(c *cobra.Command, part partial.Options, o backup.Options, kubeconfig string) (err error) {
	if kubeconfig == "" {
		kubeconfig = o.Dir.Kubeconfig()
	}
	if part.Target, err = client.FromKubeconfig(kubeconfig, "restore"); err != nil {
		return fmt.Errorf("%w; the objects go into a cluster that runs: name one by --kubeconfig or --data-dir", err)
	}
	// The networks are those that the cluster was begun with, by flags or by its name.
	if state, err := o.Dir.ReadState(); err == nil {
		cfg := *part.Config
		cfg.Cluster.Name, cfg.Cluster.PodCIDR, cfg.Cluster.ServiceCIDR = state.Cluster, state.PodCIDR, state.ServiceCIDR
		part.Config = &cfg
	}
	adopt(o.Logger)
	part.Report = func(text string) { fmt.Fprintln(a.Out, text) }
	return partial.Restore(c.Context(), part)
}

// runSurvive goes on with this server alone.
func (a *app) runSurvive(c *cobra.Command, o backup.Options, bump uint64) error {
	aside, info, err := backup.Survive(c.Context(), o, bump)
	if err != nil {
		return err
	}
	a.printAside("state", aside)
	fmt.Fprintf(a.Out, "This server goes on alone, with revision %d and %d keys; resource versions go on at %d.\n", info.Revision, info.Keys, uint64(info.Revision)+bump)
	fmt.Fprintf(a.Out, "Start it with: wasmplane up --data-dir %s\nThe other servers, should they come back, belong to a cluster that is no more: run `wasmplane down --purge --force` on each, and have it join anew.\n", o.Dir)
	return nil
}

// runRestoreMember makes the data directory of one member of an external etcd.
func (a *app) runRestoreMember(c *cobra.Command, file, dir string, bump uint64, m etcd.Member) error {
	if err := a.FromEnvironment(c.Flags()); err != nil {
		return err
	}
	if m.Name == "" || m.InitialCluster == "" || dir == "" {
		return errors.New("--member, --initial-cluster and --member-dir belong together: give all three")
	}
	fmt.Fprintln(a.Out, "Reading", file, "through ...")
	info, err := backup.RestoreMember(backup.Options{Logger: slog.New(slog.DiscardHandler)}, file, dir, bump, m)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.Out, "Restored revision %d, %d keys into %s for member %s; resource versions go on at %d.\n", info.Revision, info.Keys, dir, m.Name, uint64(info.Revision)+bump)
	fmt.Fprintf(a.Out, "Once every member has its directory, start them all, this one with what it has besides:\n  etcd --name %s --data-dir %s --initial-cluster %s --initial-cluster-token %s --initial-cluster-state new ...\n", m.Name, dir, m.InitialCluster, m.Token)
	return nil
}

func (a *app) printAside(what, where string) {
	if where != "" {
		fmt.Fprintf(a.Out, "The %s that was there is now in %s.\n", what, where)
	}
}

func (a *app) addStored(c *cobra.Command, s *settings) {
	s.Access = a.DataDir(c.Flags())
	c.Flags().StringVar(&s.file, "config", "", "configuration `FILE` of the cluster; needed where it names an external etcd")
}

// stored is the cluster whose state a command is about, and whether it runs.
func (a *app) stored(c *cobra.Command, s *settings) (backup.Options, bool, error) {
	cfg, dir, err := a.loadWithDir(c.Flags(), s)
	if err != nil {
		return backup.Options{}, false, err
	}
	pid, err := dir.Owner()
	if err != nil {
		return backup.Options{}, false, err
	}
	return backup.Options{Config: cfg, Dir: dir, Logger: slog.New(slog.DiscardHandler)}, pid != 0, nil
}

// size writes bytes as people read them.
func size(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
