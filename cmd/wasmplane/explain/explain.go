// SPDX-License-Identifier: Apache-2.0

// Package explain is the command `wasmplane why`: it reads what the API stores about one object and
// its neighbours, and prints what core/why makes of it.
package explain

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/why"
)

// Command is `wasmplane why`.
func Command(s *shell.Shell) *cobra.Command {
	var namespace, output string
	c := &cobra.Command{
		Use: "why KIND/NAME", Short: "Say why an object does not get on, and which command would let it",
		Long: `Say why an object does not get on, and which command would let it: a pod that
waits, a workload whose pods are not available, a Service without endpoints, a
claim, a namespace or a node. For a pod without a node the scheduler decides
again, on copies of the cluster that differ in one thing: a taint less, a label
more, a smaller request, a pod less, a node more. Nothing is changed, and what
could not be found out is said.`,
		Example: `  wasmplane why pod/web-0 -n shop
  wasmplane why deployment/web -o json`,
		Args: cobra.ExactArgs(1),
	}
	access := s.Access(c.Flags())
	c.Flags().StringVarP(&namespace, "namespace", "n", "default", "`NAMESPACE` of the object")
	c.RunE = func(c *cobra.Command, args []string) error {
		word, name, ok := strings.Cut(args[0], "/")
		if !ok || word == "" || name == "" {
			return fmt.Errorf("expected KIND/NAME such as pod/web-0, found %q", args[0])
		}
		kind, err := why.Kind(word)
		if err != nil {
			return err
		}
		path, err := access.Kubeconfig()
		if err != nil {
			return err
		}
		answer, err := ask(c.Context(), path, kind, namespace, name)
		if err != nil {
			return err
		}
		if output != "" {
			return s.Show(answer, output)
		}
		answer.Write(s.Out)
		return nil
	}
	shell.OutputFlag(c, &output, "json", "yaml")
	return c
}

func ask(ctx context.Context, kubeconfig, kind, namespace, name string) (*why.Answer, error) {
	cfg, err := client.FromKubeconfig(kubeconfig, "why")
	if err != nil {
		return nil, err
	}
	set, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	r := &reader{ctx: ctx, set: set}
	cluster, err := r.cluster(kind, namespace, name)
	if err != nil {
		return nil, err
	}
	if kind == "pod" {
		cluster.Refusals = refusals(ctx, kubeconfig, namespace, name)
	}
	return why.Explain(ctx, cluster, kind, namespace, name)
}
