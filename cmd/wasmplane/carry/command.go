// SPDX-License-Identifier: Apache-2.0

package carry

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/control"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/core/airgap"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join"
)

// Shell is what the commands need.
type Shell struct {
	*shell.Shell
	// Version of wasmplane.
	Version string
	// Configured adds the flags of a configuration and its data directory, and reads them.
	Configured func(f *pflag.FlagSet) func() (*config.Configuration, datadir.Dir, error)
}

// Command is airgap, with those below it.
func (a Shell) Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "airgap",
		Short: "Bring a cluster to machines without a network, in one file",
		Long: `Bring a cluster to machines without a network, in one file: the program, images,
modules of plugins and manifests, with a list of their digests that can be signed.
On a machine that has a network make it; on one that has none load it, or start with it
(wasmplane up --airgap FILE). It is a tar file: tar -xf FILE wasmplane unpacks the program.`,
	}
	c.AddCommand(a.create(), a.show(), a.load(), a.list(), a.remove())
	return c
}

func (a Shell) create() *cobra.Command {
	var w Wanted
	var output, passwordFile string
	var node, cluster bool
	c := &cobra.Command{
		Use:   "create --output FILE [--image NAME]... [--manifest FILE]... [--config FILE]",
		Short: "Make an archive",
		Long: `Make an archive of the images that are named, of those that manifests, a rendered
chart or a running cluster need, of the modules of a configuration's plugins (and of
Plugins among the manifests), and of this program. The same content makes the same bytes.
Where it breaks off, the same command goes on.

Images come from their registries, with the credentials of docker's configuration, or
from this machine's node (--from-node).`,
		Example: `  wasmplane airgap create -o all.tar --image nginx:1.27 --manifest shop.yaml --config cluster.yaml --key release.key
  helm template shop ./chart | wasmplane airgap create -o all.tar --images-from -
  wasmplane airgap create -o all.tar --from-cluster --from-node --arch arm64 --binary ./wasmplane-arm64`,
		Args: shell.NoArgs,
	}
	access := a.Access(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		if output == "" {
			return errors.New("--output: name the file to write")
		}
		dir, err := access.Dir() // and the flags from variables
		if err != nil {
			return err
		}
		if node {
			w.Node = dir
		}
		if cluster {
			if w.Cluster, err = access.Client("airgap"); err != nil {
				return err
			}
		}
		if w.Key != "" {
			if w.Password, err = password(passwordFile); err != nil {
				return err
			}
		}
		if w.Program == "" {
			if w.Program, err = os.Executable(); err != nil {
				return err
			}
		}
		w.In, w.Version = a.In, a.Version
		l, err := Create(c.Context(), output, w, a.PrintLine)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.Out, "wrote %s: %s\n", output, contents(l))
		return nil
	}
	f := c.Flags()
	f.StringVarP(&output, "output", "o", "", "`FILE` to write")
	f.StringArrayVar(&w.Images, "image", nil, "`NAME` of an image, may be given several times")
	f.StringArrayVar(&w.ImagesFrom, "images-from", nil, "`FILE` of manifests whose images are taken, the manifests not; - is the standard input")
	f.BoolVar(&cluster, "from-cluster", false, "take the images of what a running cluster has (--kubeconfig)")
	f.BoolVar(&node, "from-node", false, "take images from the node of the data directory, and not from registries")
	f.StringArrayVar(&w.Manifests, "manifest", nil, "`FILE` or folder of manifests that a server is to apply; their images are taken, too")
	f.StringVar(&w.Config, "config", "", "configuration `FILE` whose plugins' modules are taken")
	f.StringVar(&w.Arch, "arch", runtime.GOARCH, "`ARCHITECTURE` of the machines that it is for: amd64 or arm64")
	f.StringVar(&w.Program, "binary", "", "`FILE` of wasmplane for that architecture, or none (default: this program)")
	f.BoolVar(&w.Unpinned, "unpinned", false, "let nodes remove the images to make room")
	f.StringVar(&w.Key, "key", "", "`FILE` of the private key to sign the list with")
	f.StringVar(&passwordFile, "password-file", "", "`FILE` with the key's password (default: $COSIGN_PASSWORD)")
	f.StringArrayVar(&w.PlainHTTP, "plain-http", nil, "`HOST[:PORT]` of a registry of images that is asked without TLS")
	f.StringVar(&w.CAFile, "ca-file", "", "`FILE` of authorities to check registries of images with, besides the system's")
	return c
}

// password of a key.
func password(file string) ([]byte, error) {
	if file == "" {
		return []byte(os.Getenv("COSIGN_PASSWORD")), nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--password-file: %w", err)
	}
	return []byte(strings.TrimRight(string(b), "\r\n")), nil
}

// contents says in words what an archive holds.
func contents(l *airgap.List) string {
	manifests, program := 0, "without the program"
	var size int64
	for _, f := range l.Files {
		size += f.Size
		switch f.Kind() {
		case airgap.OfManifest:
			manifests++
		case airgap.OfProgram:
			program = "with wasmplane " + l.MadeBy
		case airgap.OfImages, airgap.OfModule:
		}
	}
	return fmt.Sprintf("%d images, %d modules, %d manifests, %s, for %s, %.1f MB",
		len(l.Images), len(l.Modules), manifests, program, l.Platform, float64(size)/1e6)
}

func (a Shell) show() *cobra.Command {
	var output string
	var keys []string
	c := &cobra.Command{
		Use:   "show FILE",
		Short: "Show what an archive holds, by its list",
		Args:  cobra.ExactArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		from, err := airgap.FileSource(args[0])
		if err != nil {
			return err
		}
		l, text, signature, err := airgap.Peek(c.Context(), from)
		if err != nil {
			return err
		}
		with, err := Keys(keys)
		if err == nil {
			err = Signed(text, signature, with)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		if output != "" {
			return a.Show(l, output)
		}
		state := "signed, not checked (--key)"
		switch {
		case len(with) > 0:
			state = "signed by the key"
		case len(signature) == 0:
			state = "not signed"
		}
		fmt.Fprintf(a.Out, "%s; %s.\n", contents(l), state)
		t := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
		for _, i := range l.Images {
			fmt.Fprintf(t, "image\t%s\t%.19s\n", i.Name, i.Digest)
		}
		for _, m := range l.Modules {
			fmt.Fprintf(t, "module\t%s\t%.19s\n", m.Source, m.Digest)
		}
		for _, f := range l.Files {
			if f.Kind() == airgap.OfManifest {
				fmt.Fprintf(t, "manifest\t%s\t%.19s\n", f.Name(), f.Digest)
			}
		}
		return t.Flush()
	}
	c.Flags().StringArrayVar(&keys, "key", nil, "`FILE` of a public key that has to have signed it, may be given several times")
	shell.OutputFlag(c, &output, "json", "yaml")
	return c
}

func (a Shell) load() *cobra.Command {
	var keys []string
	c := &cobra.Command{
		Use:   "load FILE",
		Short: "Take an archive over, on a machine of a cluster or before it is one",
		Long: `Take an archive over into the data directory. All of it is compared with its list
before anything is used. Then the images are imported (by the node that runs, or when one
starts), modules of plugins are put where they are looked for first, and manifests into
the folder that a server applies. The other machines of the cluster get images and modules
from the server. Where it breaks off, the same command goes on.`,
		Args: cobra.ExactArgs(1),
	}
	configured := a.Configured(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, dir, err := configured()
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			keys = keyFiles(cfg)
		}
		with, err := Keys(keys)
		if err != nil {
			return err
		}
		loaded, err := Load(c.Context(), dir, args[0], ManifestsOf(cfg, dir), with, a.PrintLine)
		if err != nil {
			return err
		}
		if err := loaded.Close(); err != nil {
			return err
		}
		return a.afterLoad(c, dir, loaded.List)
	}
	c.Flags().StringArrayVar(&keys, "key", nil, "`FILE` of a public key that has to have signed it, may be given several times (airgap.keys)")
	return c
}

// afterLoad imports the images where a node runs, and says what was done.
func (a Shell) afterLoad(c *cobra.Command, dir datadir.Dir, l *airgap.List) error {
	owner, err := dir.NodeOwner()
	if err != nil {
		return err
	}
	when := "; images are imported when the node starts"
	if owner != 0 && len(l.Images) > 0 {
		if err := machine.ImportArchives(c.Context(), dir, a.PrintLine); err != nil {
			return fmt.Errorf("the archive is there, and its images were not imported: %w; run it again, or start the node anew", err)
		}
		when = "; its images are imported"
	}
	if len(l.Images) == 0 {
		when = ""
	}
	fmt.Fprintf(a.Out, "loaded: %s%s\n", contents(l), when)
	return nil
}

// ManifestsOf is the folder of manifests that this machine applies; "" where it is a worker.
func ManifestsOf(c *config.Configuration, dir datadir.Dir) string {
	if _, err := join.Read(dir.Member()); err == nil {
		return ""
	}
	return control.ManifestsDir(c, dir)
}
