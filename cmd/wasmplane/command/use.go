// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/version"
	nodeutil "k8s.io/component-helpers/node/util"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlplugin "k8s.io/kubectl/pkg/cmd/plugin"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/check"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/localsocket"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/members"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/progress"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/join"
	"github.com/wasmplane/wasmplane/core/join/balance"
	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/trace/journey"
	"github.com/wasmplane/wasmplane/core/trace/otlp"
)

// runKubectl is the real kubectl, with the default cluster's kubeconfig where the
// user names none. Where a data directory is named that has no cluster, nothing else is asked.
func runKubectl(args []string, stderr io.Writer) int {
	dir, named := datadir.Default(), true
	if d := os.Getenv("WASMPLANE_DATA_DIR"); d != "" {
		dir = datadir.Dir(d)
	}
	if len(args) > 1 && args[0] == "--data-dir" {
		dir, args = datadir.Dir(args[1]), args[2:]
	} else if len(args) > 0 && strings.HasPrefix(args[0], "--data-dir=") {
		dir, args = datadir.Dir(strings.TrimPrefix(args[0], "--data-dir=")), args[1:]
	} else {
		named = false
	}
	if os.Getenv("KUBECONFIG") == "" {
		switch _, err := os.Stat(dir.Kubeconfig()); {
		case err == nil:
			_ = os.Setenv("KUBECONFIG", dir.Kubeconfig())
		case named && !slices.ContainsFunc(args, namesServer):
			if _, err := dir.ReadState(); err != nil {
				fmt.Fprintln(stderr, "error:", err)
				return 1
			}
		}
	}
	os.Args = append([]string{"kubectl"}, args...)
	// As kubectl's own main runs it: with the flags of its log (-v), and with its words for errors.
	if err := cli.RunNoErrOutput(kubectlFor(dir)); err != nil {
		kubectlutil.CheckErr(err)
		return 1
	}
	return 0
}

// namesServer tells an argument of kubectl that says whom to ask.
func namesServer(arg string) bool {
	return strings.HasPrefix(arg, "--kubeconfig") || strings.HasPrefix(arg, "--server") || arg == "-s"
}

// kubectlFor is kubectl with its defaults, which reaches the server of the data
// directory by its socket, for who may use that, and by the network otherwise: no
// pod's host port can stand in between. Where that server does not answer, another one
// of the cluster is asked.
func kubectlFor(dir datadir.Dir) *cobra.Command {
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50).
		WithWarningPrinter(streams)
	if state, err := dir.ReadState(); err == nil {
		flags = flags.WithWrapConfigFn(func(c *rest.Config) *rest.Config {
			if (c.Host == state.Server || c.Host == state.Public) && c.Dial == nil && c.Proxy == nil {
				others := otherServers(dir)
				c.Dial, c.Proxy = localsocket.First(dir.Socket(), c.Host, others)
				if others != nil && c.ServerName == "" {
					c.ServerName = join.ServerName // their certificates do not have this one's address
				}
			}
			return c
		})
	}
	return kubectl.NewDefaultKubectlCommandWithArgs(kubectl.KubectlOptions{
		PluginHandler: kubectl.NewDefaultPluginHandler(kubectlplugin.ValidPluginFilenamePrefixes),
		Arguments:     os.Args, ConfigFlags: flags, IOStreams: streams,
	})
}

// otherServers connects to a server of the cluster that answers; nil where no other one is known.
func otherServers(dir datadir.Dir) func(ctx context.Context, network, address string) (net.Conn, error) {
	b := balance.New(balance.Config{File: dir.Servers(), Log: slog.New(slog.DiscardHandler)})
	if len(b.Servers()) < 2 {
		return nil
	}
	return localsocket.Among(b.Servers())
}

func (a *app) kubectl() *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [--data-dir DIR] ...",
		Short: "The real kubectl, set up for the cluster of the data directory",
		// Main runs kubectl before this tree is made: it has a tree of its own.
		DisableFlagParsing: true,
		Run:                func(*cobra.Command, []string) {},
	}
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of wasmplane and of the Kubernetes API that it serves",
		Args:  shell.NoArgs,
		Run: func(*cobra.Command, []string) {
			fmt.Fprintln(a.Out, versions())
		},
	}
}

func versions() string {
	return fmt.Sprintf("wasmplane %s (Kubernetes %s, %s, %s/%s)", Version, version.Get().GitVersion, runtime.Version(), runtime.GOOS,
		runtime.GOARCH)
}

func (a *app) check() *cobra.Command {
	s, cis, from := settings{}, false, ""
	c := &cobra.Command{
		Use:   "check",
		Short: "Tell what this host lacks for a real node, a cluster by the CIS benchmark, or the network between its machines, and what to do",
		Long: `Tell what this host lacks for a real node, and what to do.

With --from a node of a running cluster, or each (--from all), tries by a connection or a
question of DNS what it needs of all other machines: their APIs, from servers their kubelets
and stores, the network of pods, its own DNS and the address of a Service. That takes the
rights of an administrator, and a few seconds. Nodes that are not ready are named.`,
		Example: `  wasmplane check
  wasmplane check --from all
  wasmplane check --from worker-1 --kubeconfig admin.kubeconfig`,
		Args: shell.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, dir, err := a.loadWithDir(c.Flags(), &s)
			if err != nil {
				return err
			}
			if from != "" {
				err = a.checkNetwork(c.Context(), &s, cfg.Cluster.Domain, from)
			} else {
				err = check.Run(c.Context(), a.Out, cfg, string(dir), cis)
			}
			if errors.Is(err, check.ErrLacking) {
				return &shell.ExitError{Code: 1}
			}
			return err
		},
	}
	c.Flags().BoolVar(&cis, "cis", false, "tell by the numbers of the CIS Kubernetes benchmark what the cluster of --data-dir and --config meets and lacks")
	c.Flags().StringVar(&from, "from", "", "have `NODE` of the cluster, or all, try which machines and ports it reaches")
	c.MarkFlagsMutuallyExclusive("cis", "from")
	s.Access = a.Access(c.Flags())
	c.Flags().StringVar(&s.file, "config", "", "configuration `FILE` that the cluster is started with")
	return c
}

// checkNetwork has a node try what it reaches. The cluster knows its domain best.
func (a *app) checkNetwork(ctx context.Context, s *settings, domain, from string) error {
	set, err := s.Client("check")
	if err != nil {
		return err
	}
	return check.Network(ctx, a.Out, set.Config, domain, from)
}

func (a *app) status() *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:   "status",
		Short: "Tell whether the cluster runs, and how its parts are",
		Args:  shell.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := s.Dir()
			if err != nil {
				return err
			}
			return showStatus(c.Context(), a.Out, dir)
		},
	}
	s.Access = a.DataDir(c.Flags())
	return c
}

func showStatus(ctx context.Context, out io.Writer, dir datadir.Dir) error {
	state, err := dir.ReadState()
	if err != nil {
		return err
	}
	pid, err := dir.Owner()
	if err != nil {
		return err
	}
	if m, err := join.Read(dir.Member()); err == nil {
		if err := members.Status(ctx, out, dir, m, pid); !errors.Is(err, members.ErrNotWell) {
			return err
		}
		return &shell.ExitError{Code: 1}
	}
	fmt.Fprintf(out, "cluster:       %s (%s)\ndata:          %s\nnodes:         %s\n", state.Cluster, state.Version, dir, state.Nodes)
	if node, err := dir.NodeOwner(); err == nil && node != 0 && node != pid {
		fmt.Fprintf(out, "kubelet:       process %d\n", node)
	}
	if _, err := os.Stat(dir.Kubeconfig()); errors.Is(err, fs.ErrNotExist) { // a kubelet by itself
		fmt.Fprintln(out, "control plane: of other machines, at", state.Server)
		return nil
	}
	if next, err := members.NextToEnd(dir); err == nil && next != "" {
		fmt.Fprintln(out, "certificates: ", next)
	}
	if pid == 0 {
		fmt.Fprintln(out, "control plane: not running; start it with: wasmplane up --data-dir", dir)
		return &shell.ExitError{Code: 1}
	}
	fmt.Fprintf(out, "control plane: process %d, up for %s, at %s\n", pid, progress.Short(time.Since(state.Started)), state.Server)
	cfg, err := dir.Own("status")
	if err != nil {
		return err
	}
	set, err := client.New(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ready, err := set.Kube.Discovery().RESTClient().Get().AbsPath("/readyz").Param("verbose", "true").DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("the apiserver is not ready: %w", err)
	}
	fmt.Fprintln(out, "apiserver:     ready,", strings.Count(string(ready), "[+]"), "checks ok")
	nodes, err := set.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "\nNODE\tREADY\tPODS")
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if i == 20 {
			fmt.Fprintf(w, "and %d more\t\t\n", len(nodes.Items)-i)
			break
		}
		pods, err := set.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.Name})
		if err != nil {
			return fmt.Errorf("list pods of node %s: %w", n.Name, err)
		}
		ready := corev1.ConditionUnknown
		if _, c := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady); c != nil {
			ready = c.Status
		}
		fmt.Fprintf(w, "%s\t%s\t%d\n", n.Name, ready, len(pods.Items))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := members.Disk(ctx, out, set.Kube); err != nil {
		return err
	}
	if state.Public != "" {
		if err := members.VirtualAddress(ctx, out, set.Kube, dir, state); err != nil {
			return err
		}
	}
	return errors.Join(members.Servers(ctx, out, set.Kube, set.Config), members.Clocks(ctx, out, set.Kube),
		members.Migrations(ctx, out, set.Kube))
}

func (a *app) image() *cobra.Command {
	var s settings
	c := &cobra.Command{Use: "image", Short: "Images of the real node"}
	s.Access = a.DataDir(c.PersistentFlags())
	progress := func(step string) { fmt.Fprintln(a.Err, step) }
	c.AddCommand(
		a.imageImport(&s, progress),
		a.imageExport(&s, progress),
		a.imagePush(),
		&cobra.Command{
			Use:     "ls",
			Aliases: []string{"list"},
			Short:   "List the images",
			Args:    shell.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				dir, err := s.Dir()
				if err != nil {
					return err
				}
				images, err := machine.ListImages(c.Context(), dir)
				if err != nil {
					return err
				}
				w := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
				fmt.Fprintln(w, "IMAGE\tID\tSIZE")
				for _, i := range images {
					fmt.Fprintf(w, "%s\t%.19s\t%.1f MB\n", i.Name, i.Digest, float64(i.Size)/1e6)
				}
				return w.Flush()
			},
		},
	)
	return c
}

func (a *app) imageImport(s *settings, progress func(string)) *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:   "import FILE...",
		Short: "Import images from OCI layouts (folder or tar) and docker archives",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, files []string) error {
			dir, err := s.Dir()
			if err != nil {
				return err
			}
			for _, f := range files {
				names, err := machine.ImportImages(c.Context(), dir, f, name, progress)
				if err != nil {
					return err
				}
				for _, name := range names {
					fmt.Fprintln(a.Out, "imported", name)
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&name, "name", "", "`REPOSITORY` or REPOSITORY:TAG of a layout's images, where it has tags alone or no names")
	return c
}

func (a *app) imageExport(s *settings, progress func(string)) *cobra.Command {
	var file string
	var all bool
	c := &cobra.Command{
		Use:   "export --output FILE NAME...",
		Short: "Write images of the node into one archive, for machines without a registry",
		Example: `  wasmplane image export --all --output images.tar
  wasmplane image export nginx:1.14.2 --output - | ssh other wasmplane image import /dev/stdin`,
		RunE: func(c *cobra.Command, names []string) error {
			switch {
			case file == "":
				return errors.New("--output: name the file to write, or - for the standard output")
			case all && len(names) > 0:
				return errors.New("--all exports every image: leave the names out")
			case !all && len(names) == 0:
				return errors.New("name the images to export, or use --all")
			}
			dir, err := s.Dir()
			if err != nil {
				return err
			}
			return machine.ExportImages(c.Context(), dir, names, all, file, a.Out, progress)
		},
	}
	c.Flags().StringVarP(&file, "output", "o", "", "`FILE` to write, a tar of an OCI layout; - is the standard output")
	c.Flags().BoolVar(&all, "all", false, "export every image that the node has")
	return c
}

func (a *app) trace() *cobra.Command {
	var namespace, output string
	var all bool
	var access *shell.Access
	c := &cobra.Command{
		Use:   "trace KIND/NAME",
		Short: "Show what happened to one apply: every step, who decided what, and how long it took",
		Example: `  wasmplane trace deployment/nginx-deployment
  wasmplane trace pod/web-0 -n shop -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			kind, name, ok := strings.Cut(args[0], "/")
			if !ok || kind == "" || name == "" {
				return fmt.Errorf("expected KIND/NAME such as deployment/nginx, found %q", args[0])
			}
			if output != "" && output != "json" {
				return fmt.Errorf("-o: expected json, found %q", output)
			}
			set, err := access.Client("trace")
			if err != nil {
				return err
			}
			found, err := otlp.Ask(c.Context(), set.Kube.Discovery().RESTClient(), trace.Query{
				Kind: kind, Namespace: namespace, Name: name,
				All: all,
			})
			if err != nil {
				return err
			}
			if output == "json" {
				enc := json.NewEncoder(a.Out)
				enc.SetIndent("", "  ")
				return enc.Encode(found)
			}
			return journey.Render(a.Out, found, journey.RenderOptions{Width: terminalWidth()})
		},
	}
	access = a.Access(c.Flags())
	c.Flags().StringVarP(&namespace, "namespace", "n", "default", "`NAMESPACE` of the object")
	c.Flags().StringVarP(&output, "output", "o", "", "`FORMAT` of the answer: json (default: a tree for people)")
	c.Flags().BoolVar(&all, "all", false, "show every request, not only the latest generation's")
	return c
}

var errNoKubeconfig = errors.New("--kubeconfig is missing: `wasmplane apiserver` writes one for each component below its data directory, in components/")

// terminalWidth is that of the terminal at stdout; 0 where it is none.
func terminalWidth() int {
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		return 0
	}
	return width
}
