// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/join/balance"
	"github.com/wasmplane/wasmplane/core/pki"
)

// Certs is the command of that name.
func (s Shell) Certs() *cobra.Command {
	c := &cobra.Command{Use: "certs", Short: "Certificates of this machine"}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the certificates of this machine: what for, who signs, when they end",
		Args: cobra.NoArgs,
		Long: `List the certificates of this machine: what each is for, who signs it and when it
ends, the next to end first. All are renewed by themselves, in the last third of
their lives, while wasmplane runs here.`,
	}
	access := s.DataDir(list.Flags())
	list.RunE = func(*cobra.Command, []string) error {
		dir, err := access.Dir()
		if err != nil {
			return err
		}
		return ListCerts(s.Out, dir)
	}
	c.AddCommand(list, s.certsRenew(), s.certsRotate())
	return c
}

// ListCerts prints the certificates of a data directory.
func ListCerts(out io.Writer, dir datadir.Dir) error {
	found, err := certificates(dir)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("%s holds no certificates", dir)
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "FILE\tFOR\tSIGNED BY\tENDS")
	for _, c := range found {
		file, err := filepath.Rel(string(dir), c.File)
		if err != nil {
			file = c.File
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", file, c.For, c.SignedBy, ends(c.Ends, time.Now()))
	}
	return w.Flush()
}

func (s Shell) certsRenew() *cobra.Command {
	c := &cobra.Command{
		Use: "renew [NAME...]", Short: "Make this server's certificates again, with new keys, without a restart",
		Long: `Make this server's certificates again, with new keys: those that are named (as
"wasmplane certs list" shows them, without .pem), or all. What runs goes on with the
new ones within seconds. The old ones stay good until they end: this is for a date to
be had early, not for a key that was stolen. Authorities stay, and kubeconfigs with a
certificate inside of them are made again at the next start.

A worker's certificates are signed by the cluster, and renewed by its agent. That of a
light server for the store is signed by a server that keeps it, which has to answer.`,
	}
	access := s.DataDir(c.Flags())
	c.RunE = func(c *cobra.Command, names []string) error {
		dir, err := access.Dir()
		if err != nil {
			return err
		}
		if _, err := os.Stat(dir.Member()); err == nil {
			return errors.New("this machine is a worker: its agent has the cluster sign its certificates again in the last third of their lives; for new ones now, let it leave (wasmplane down --purge) and join anew")
		}
		for i := range names {
			names[i] = strings.TrimSuffix(filepath.Base(names[i]), ".pem")
		}
		others, err := s.renewStoreClient(c.Context(), dir, names)
		if err != nil || len(names) > 0 && len(others) == 0 {
			return err
		}
		renewed, err := pki.RenewNow(dir.PKI(), others, time.Now())
		for _, name := range renewed {
			fmt.Fprintln(s.Out, "renewed", name)
		}
		return err
	}
	return c
}

// renewStoreClient has another server sign what this one cannot, on a light server, if that is among the names. It answers the
// other names.
func (s Shell) renewStoreClient(ctx context.Context, dir datadir.Dir, names []string) (others []string, err error) {
	own, err := join.ReadServer(dir.Server())
	if errors.Is(err, join.ErrNotJoined) || err == nil && !own.Light {
		return names, nil
	}
	if err != nil {
		return nil, err
	}
	if len(names) > 0 && !slices.Contains(names, pki.StoreClient) {
		return names, nil
	}
	cfg, err := dir.Own("members")
	if err != nil {
		return nil, err
	}
	known := balance.New(balance.Config{File: dir.Servers(), First: own.By, Log: slog.New(slog.DiscardHandler)})
	client := join.StoreClient{
		Name: own.Name, PKI: dir.PKI(), Servers: func(context.Context) ([]string, error) { return known.Servers(), nil },
		Own: func() (*rest.Config, error) { return cfg, nil },
	}
	if err := client.Renew(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintln(s.Out, "renewed", pki.StoreClient)
	return slices.DeleteFunc(names, func(name string) bool { return name == pki.StoreClient }), nil
}

func certificates(dir datadir.Dir) ([]pki.Certificate, error) {
	return pki.List(dir.PKI(), dir.Member())
}

func ends(at, now time.Time) string {
	if now.After(at) {
		return at.Format(time.DateOnly) + ", has ended"
	}
	return fmt.Sprintf("%s, in %d days", at.Format(time.DateOnly), int(at.Sub(now)/(24*time.Hour)))
}

// NextToEnd is a line for the status of a machine: the certificate that ends first.
func NextToEnd(dir datadir.Dir) (string, error) {
	found, err := certificates(dir)
	if err != nil || len(found) == 0 {
		return "", err
	}
	file, err := filepath.Rel(string(dir), found[0].File)
	return fmt.Sprintf("%d, the next ends %s (%s)", len(found), ends(found[0].Ends, time.Now()), file), err
}
