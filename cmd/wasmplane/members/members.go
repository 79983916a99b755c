// SPDX-License-Identifier: Apache-2.0

// Package members has the commands for a cluster of several machines: tokens, joining and
// leaving, and an operator's commands for nodes. It has only flags and output; the work is
// done by core/join and others.
package members

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/progress"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/core/auth/jointoken"
	"github.com/wasmplane/wasmplane/core/bootstrap/clusterinfo"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join/handover"
)

// Shell is what the command line gives to these commands.
type Shell struct {
	*shell.Shell
	// Work adds the flags of a process that works in the foreground.
	Work func(*pflag.FlagSet) Foreground
}

// Foreground is a process that works until it is interrupted.
type Foreground interface {
	// Take reads the configuration and takes the data directory for this process.
	Take(f *pflag.FlagSet) (*config.Configuration, datadir.Dir, func(), error)
	// Up runs the directory's server.
	Up(ctx context.Context, c *config.Configuration, dir datadir.Dir) error
	// Run runs work with a log in the directory, and prints what becomes ready, and at last stopped.
	Run(ctx context.Context, c *config.Configuration, dir datadir.Dir, what string,
		work func(context.Context, process.Options, func(process.Info)) error, stopped string) error
}

func (s Shell) client(access *shell.Access) (kubernetes.Interface, error) {
	set, err := access.Client("members")
	if err != nil {
		return nil, err
	}
	return set.Kube, nil
}

// Token is the command of that name.
func (s Shell) Token() *cobra.Command {
	c := &cobra.Command{
		Use: "token", Short: "Tokens by which machines join this cluster",
		Long: `Tokens by which machines join this cluster. A token is short-lived, lets its
holder ask for a node's certificate and nothing else (with --server: for the cluster's
keys, once), and names the cluster's
authority, so that a machine hands it to no other server. The cluster keeps only
a digest of it.`,
	}
	c.AddCommand(s.tokenCreate(), s.tokenList(), s.tokenRevoke())
	return c
}

func (s Shell) tokenCreate() *cobra.Command {
	var life time.Duration
	var description string
	var quiet, server bool
	c := &cobra.Command{Use: "create", Short: "Make a token, and print it with the command that uses it", Args: cobra.NoArgs}
	access := s.Access(c.Flags())
	c.Flags().DurationVar(&life, "ttl", jointoken.DefaultLife, "`TIME` until the token ends")
	c.Flags().BoolVar(&server, "server", false, "the token lets a further server in, which is given the cluster's keys; it is used up by the first, and ends in 15 minutes")
	c.Flags().StringVar(&description, "description", "", "`TEXT` that says what the token is for")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print the token alone")
	c.RunE = func(c *cobra.Command, _ []string) error {
		kube, err := s.client(access)
		if err != nil {
			return err
		}
		var around handover.Offer
		group, whom := jointoken.WorkersGroup, ""
		if server {
			group, whom = jointoken.ServersGroup, "--server "
			if !c.Flags().Changed("ttl") {
				life = jointoken.DefaultServerLife
			}
			if around, err = askServers(c.Context(), kube, "POST", handover.OpenPath, nil); err != nil {
				return err
			}
		}
		about, err := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(c.Context(), clusterinfo.ConfigMap, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("ask which authority the cluster has: %w", err)
		}
		token, err := jointoken.Create(c.Context(), kube, group, life, description)
		if err != nil {
			return err
		}
		token.Pin = about.Data[clusterinfo.Authority]
		if quiet {
			fmt.Fprintln(s.Out, token)
			return nil
		}
		at, unheard, err := serverOf(c.Context(), kube, around.Light)
		if err != nil {
			return err
		}
		fmt.Fprintf(s.Out, "%s\n\nIt ends in %s. On the machine that is to join, as root:\n\n  wasmplane join %s %s--token-file -\n\nand paste the token, or write it to a file that only root can read, and name that.\n", token, progress.Short(life), at, whom)
		if server {
			fmt.Fprintln(s.Out, "\nWhoever has it is given every key of the cluster, once: hand it to nobody else, and revoke it if it is not used.")
		}
		if unheard {
			fmt.Fprintf(s.Out, "\nNothing answers at %s: if the API listens on this machine alone, start it with --listen :6443 before others join.\n", at)
		}
		return nil
	}
	return c
}

// serverOf is an address by which other machines reach the API, and whether nothing answers there:
// the API announces the machine's address also when it listens on loopback only. Those that cannot take the machine in are not named.
func serverOf(ctx context.Context, kube kubernetes.Interface, cannot []handover.Light) (server string, unheard bool, err error) {
	slice, err := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return "", false, fmt.Errorf("ask where the API is: %w", err)
	}
	var all []string
	for _, e := range slice.Endpoints {
		for _, a := range e.Addresses {
			if len(slice.Ports) > 0 && slice.Ports[0].Port != nil {
				all = append(all, net.JoinHostPort(a, strconv.Itoa(int(*slice.Ports[0].Port))))
			}
		}
	}
	all = slices.DeleteFunc(all, func(a string) bool {
		return slices.ContainsFunc(cannot, func(l handover.Light) bool { return l.Address == a })
	})
	if len(all) == 0 {
		return "SERVER", false, nil
	}
	server = all[0]
	dialer := net.Dialer{Timeout: 2 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", server)
	if err != nil {
		return server, true, nil //nolint:nilerr // that is the answer
	}
	return server, false, conn.Close()
}

func (s Shell) tokenList() *cobra.Command {
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the tokens, without what would let anybody join",
		Args: cobra.NoArgs,
	}
	access := s.Access(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		kube, err := s.client(access)
		if err != nil {
			return err
		}
		found, err := jointoken.List(c.Context(), kube)
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(s.Out, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "ID\tFOR A\tENDS IN\tDESCRIPTION")
		for _, e := range found {
			ends := "never"
			if left := time.Until(e.Ends); !e.Ends.IsZero() && left > 0 {
				ends = progress.Short(left)
			} else if !e.Ends.IsZero() {
				ends = "has ended"
			}
			whom := "worker"
			if slices.Contains(e.Groups, jointoken.ServersGroup) {
				whom = "server"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", e.ID, whom, ends, e.Description)
		}
		return w.Flush()
	}
	return c
}

func (s Shell) tokenRevoke() *cobra.Command {
	c := &cobra.Command{
		Use: "revoke ID", Short: "End a token at once", Args: cobra.ExactArgs(1),
		Long: "End a token at once. Machines that have joined by it stay: `wasmplane node remove` is for those.",
	}
	access := s.Access(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		kube, err := s.client(access)
		if err != nil {
			return err
		}
		if err := jointoken.Revoke(c.Context(), kube, args[0]); err != nil {
			return err
		}
		fmt.Fprintln(s.Out, "revoked", strings.Split(args[0], ".")[0])
		return nil
	}
	return c
}
