// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/plugins/author/distribution"
)

// imagePush makes an image of a WebAssembly program. It needs no node.
func (a *app) imagePush() *cobra.Command {
	var r distribution.Registry
	c := &cobra.Command{
		Use:   "push FILE.wasm HOST/REPOSITORY:TAG",
		Short: "Put a WebAssembly program into a registry, as an image for pods",
		Long: `Put a WebAssembly program into a registry, as an image for pods (the Wasm OCI
artifact): a module that is a command, or a component that is a command or a
server of HTTP. What no node could run is refused. The answer is the image by its
digest. The same file has the same digest.`,
		Example: "  wasmplane image push server.wasm registry.example.com/shop/server:1",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			p, what, err := r.PushProgram(c.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			fmt.Fprintf(a.Out, "pushed %s\nin a container, this pins it:\n  image: %s\n", what, p.Source)
			return nil
		},
	}
	c.Flags().BoolVar(&r.PlainHTTP, "plain-http", false, "ask the registry without TLS")
	c.Flags().StringVar(&r.CAFile, "ca-file", "", "`FILE` of authorities to check the registry's certificate with (default: the system's)")
	c.Flags().StringVar(&r.DockerConfig, "docker-config", "", "`FILE` with credentials (default: docker's own, where there is one)")
	return c
}
