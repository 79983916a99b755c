// SPDX-License-Identifier: Apache-2.0

// Package explain is the command `wasmplane why`: it asks the server why an object does not get on, or finds
// it out by itself where the server does not answer that, and prints the answer.
package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/whyapi"
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
budget that blocks a drain, a webhook that refuses everything, a custom resource
whose controller is silent, and more (docs/WHY.md).

The server answers, with what you may read there, and keeps the first line as an
event of the object, if you may write events. For a pod without a node the
scheduler decides again, on copies of the cluster that differ in one thing: a
taint less, a label more, a smaller request, a pod less, a higher priority, a
node more. Nothing else is changed, and what could not be found out is said.`,
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
		set, err := access.Client("why")
		if err != nil {
			return err
		}
		answer, err := ask(c.Context(), set, whyapi.Question{Word: word, Namespace: namespace, Name: name})
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

// ask the server; where it does not answer such questions, what it stores is read and thought about here.
func ask(ctx context.Context, set *client.Set, q whyapi.Question) (*why.Answer, error) {
	a, err := whyapi.Ask(ctx, set, q)
	if errors.Is(err, whyapi.ErrNotOffered) {
		return whyapi.Local(ctx, set, q)
	}
	return a, err
}
