// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/plugins/author/distribution"
)

// registryFlags say how a registry is reached.
func registryFlags(c *cobra.Command, r *distribution.Registry) {
	c.Flags().BoolVar(&r.PlainHTTP, "plain-http", false, "ask the registry without TLS")
	c.Flags().StringVar(&r.CAFile, "ca-file", "", "`FILE` of authorities to check the registry's certificate with (default: the system's)")
	c.Flags().StringVar(&r.DockerConfig, "docker-config", "", "`FILE` with credentials (default: docker's own, where there is one)")
}

func (a commands) registry() []*cobra.Command {
	return []*cobra.Command{a.push(), a.pull(), a.keygen(), a.sign(), a.verify()}
}

func (a commands) showPushed(p *distribution.Pushed, output, what string) error {
	if output != "" {
		return a.Show(p, output)
	}
	fmt.Fprintf(a.Out, "%s %s\nin an entry, this pins it:\n  source: %s\n", what, p.Module, p.Source)
	return nil
}

func (a commands) push() *cobra.Command {
	var r distribution.Registry
	var output string
	c := &cobra.Command{
		Use:   "push [PLUGIN] oci://HOST/REPOSITORY:TAG",
		Short: "Put a plugin's module into a registry, as a Wasm OCI artifact",
		Long: `Put a plugin's module into a registry, as a Wasm OCI artifact. The module is
loaded first: one that does not load is not pushed. The answer is the source that
pins it. The same module has the same digest.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := openConfig(args[:len(args)-1])
			if err != nil {
				return err
			}
			p, err := r.Push(c.Context(), cfg, args[len(args)-1])
			if err != nil {
				return err
			}
			return a.showPushed(p, output, "pushed module")
		},
	}
	registryFlags(c, &r)
	shell.OutputFlag(c, &output, "json", "yaml")
	return c
}

func (a commands) pull() *cobra.Command {
	var r distribution.Registry
	var out, output string
	var keys []string
	c := &cobra.Command{
		Use:   "pull oci://HOST/REPOSITORY:TAG[@sha256:DIGEST] --out FILE",
		Short: "Fetch a module from a registry",
		Long: `Fetch a module from a registry. With --key, it has to be signed by one of the keys.
A tag without a digest is resolved, and the answer says to what: pin that.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if out == "" {
				return errors.New("--out is missing: the file to write the module to")
			}
			p, err := r.Pull(c.Context(), args[0], out, keys)
			if err != nil {
				return err
			}
			return a.showPushed(p, output, "wrote "+out+", module")
		},
	}
	registryFlags(c, &r)
	c.Flags().StringVar(&out, "out", "", "`FILE` to write the module to")
	c.Flags().StringArrayVar(&keys, "key", nil, "`FILE` of a public key that has to have signed it, may be given several times")
	shell.OutputFlag(c, &output, "json", "yaml")
	return c
}

func (a commands) keygen() *cobra.Command {
	var prefix string
	c := &cobra.Command{
		Use:   "keygen",
		Short: "Make a pair of keys to sign modules with; cosign's do as well",
		Args:  shell.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			private, public, err := distribution.GenerateKey(prefix)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.Out, "made %s (keep it to yourself: it is not encrypted) and %s\n", private, public)
			return nil
		},
	}
	c.Flags().StringVar(&prefix, "out", "plugin", "`PREFIX` of the files' names")
	return c
}

func (a commands) sign() *cobra.Command {
	var r distribution.Registry
	var key, passwordFile string
	c := &cobra.Command{
		Use:   "sign FILE|oci://HOST/REPOSITORY:TAG --key FILE",
		Short: "Sign a module by a key, as cosign does",
		Long: `Sign a module by a key, as cosign does: in a registry the signature lies beside the
module; that of a file is written to FILE.sig. Keys are ECDSA, Ed25519 or RSA,
in PKCS#8 PEM or in cosign's encrypted form, whose password is $COSIGN_PASSWORD
or in --password-file.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if key == "" {
				return errors.New("--key is missing: the file of a private key; wasmplane plugin keygen makes one")
			}
			password := []byte(os.Getenv("COSIGN_PASSWORD"))
			if passwordFile != "" {
				b, err := os.ReadFile(passwordFile)
				if err != nil {
					return fmt.Errorf("--password-file: %w", err)
				}
				password = []byte(strings.TrimRight(string(b), "\r\n"))
			}
			where, err := r.Sign(c.Context(), args[0], key, password)
			if err != nil {
				return err
			}
			fmt.Fprintln(a.Out, "signed; the signature is", where)
			return nil
		},
	}
	registryFlags(c, &r)
	c.Flags().StringVar(&key, "key", "", "`FILE` of the private key")
	c.Flags().StringVar(&passwordFile, "password-file", "", "`FILE` with the key's password")
	return c
}

func (a commands) verify() *cobra.Command {
	var r distribution.Registry
	var keys []string
	c := &cobra.Command{
		Use:   "verify FILE|oci://HOST/REPOSITORY:TAG --key FILE",
		Short: "Check that a key signed a module",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(keys) == 0 {
				return errors.New("--key is missing: the file of a public key")
			}
			what, err := r.Verify(c.Context(), args[0], keys)
			if err != nil {
				return err
			}
			fmt.Fprintln(a.Out, "verified", what)
			return nil
		},
	}
	registryFlags(c, &r)
	c.Flags().StringArrayVar(&keys, "key", nil, "`FILE` of a public key, may be given several times: one of them has to fit")
	return c
}
