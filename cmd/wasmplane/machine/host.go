// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
	"github.com/wasmplane/wasmplane/core/kubelet/images"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/localcsi"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode"
	"github.com/wasmplane/wasmplane/core/kubelet/route"
	"github.com/wasmplane/wasmplane/core/pki/kubeconfig"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// CheckHost lists what this machine lacks for a real node of a cluster and how to get it, and
// with what restrictions one runs here.
func CheckHost(ctx context.Context, c *config.Configuration) (fatal, restrictions []string) {
	for _, p := range problems(ctx, c) {
		if p.Warning {
			restrictions = append(restrictions, p.String())
			continue
		}
		fatal = append(fatal, p.String())
	}
	return fatal, restrictions
}

func problems(ctx context.Context, c *config.Configuration) []hostcheck.Problem {
	out := hostcheck.Check(ctx)
	if slices.ContainsFunc(c.Cluster.PodNetworks(), func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		if p := linuxhost.CheckIPv6(); p != nil {
			out = append(out, *p)
		}
	}
	return out
}

// RequireHost fails where this machine cannot be a real node of a cluster, and says what it lacks.
func RequireHost(ctx context.Context, c *config.Configuration) error {
	if err := hostcheck.Fatal(problems(ctx, c)); err != nil {
		return fmt.Errorf("this machine cannot be a real node:\n%w\nsimulated nodes work without: wasmplane up --nodes simulated:3", err)
	}
	return nil
}

// Down removes everything of the cluster from this host, whether or not it runs.
func Down(ctx context.Context, dir datadir.Dir, purge bool, logger *slog.Logger, note func(string)) error {
	state, err := dir.ReadState()
	if err != nil {
		return err
	}
	o := stateOptions(dir, state, logger)
	if _, err := os.Stat(dir.Node()); err == nil {
		note("removing containers, mounts, cgroups and the network")
		if err := removeNode(ctx, o); err != nil {
			return err
		}
	}
	if !purge {
		return nil
	}
	if state.MergedInto != "" {
		note("removing the cluster from " + state.MergedInto)
		if err := kubeconfig.Unmerge(state.MergedInto, state.Cluster); err != nil {
			return err
		}
	}
	note("removing " + string(dir))
	if err := os.RemoveAll(string(dir)); err != nil {
		return fmt.Errorf("remove the data: %w", err)
	}
	return nil
}

// stateOptions are the options of the cluster that last ran in dir.
func stateOptions(dir datadir.Dir, state datadir.State, logger *slog.Logger) process.Options {
	c := config.Default()
	c.Cluster.Name, c.Cluster.PodCIDR, c.Cluster.ServiceCIDR = state.Cluster, state.PodCIDR, state.ServiceCIDR
	c.Node.Name, c.Node.LogDir, c.Node.LogLinkDir, c.Node.KubeletLink = state.NodeName, state.LogDir, state.LogLinkDir, state.KubeletLink
	return process.Options{Config: c, Dir: dir, Logger: logger}
}

func removeNode(ctx context.Context, o process.Options) error {
	if os.Geteuid() != 0 {
		return errors.New("the cluster has a real node on this machine; run this as root to take it down")
	}
	names := linuxhost.NamesOf(o.Config.Cluster.Name)
	err := errors.Join(realnode.Remove(ctx, realNodeConfig(o), 10), removeRoutes(o.Config.Cluster.PodCIDR))
	err = errors.Join(err, linuxhost.RemoveTables(ctx, names), linuxhost.UnmountBelow(o.Dir.Node()),
		localcsi.Release(localDisk(o)), unlinkKubelet(o.Config.Node.KubeletLink, kubeletRoot(o)))
	if err != nil {
		return err
	}
	g, err := linuxhost.New(linuxhost.Config{
		NodeName: o.Config.Node.Name, RootDir: kubeletRoot(o), LogRoot: o.Config.Node.LogDir, LinkRoot: o.Config.Node.LogLinkDir,
		CgroupRoot: names.PodsCgroup(), Logger: o.Logger,
	})
	if err != nil {
		return err
	}
	pods, err := g.Claimed(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, uid := range pods {
		errs = append(errs, g.Release(ctx, uid), g.Erase(ctx, uid))
	}
	return errors.Join(append(errs, linuxhost.RemoveCgroup(names.Cgroup()))...)
}

func removeRoutes(podCIDR string) error {
	pods, err := config.ParseNetworks(podCIDR)
	if err != nil {
		return nil //nolint:nilerr // a cluster that never began has none
	}
	return route.Remove(pods...)
}

// WriteState leaves to later commands (down, status, image) what a kubelet by itself has
// put on this machine. Where an API server runs in the same directory, its state stays.
func WriteState(o process.Options, server string) error {
	c := o.Config
	state, err := o.Dir.ReadState()
	if err != nil || state.Cluster != c.Cluster.Name {
		state = datadir.State{Cluster: c.Cluster.Name, Server: server, Started: time.Now(), Version: o.Version}
	}
	state.PodCIDR, state.ServiceCIDR, state.CRIEndpoint = c.Cluster.PodCIDR, c.Cluster.ServiceCIDR, c.Node.CRIEndpoint
	state.Nodes, state.NodeName, state.LogDir, state.LogLinkDir = datadir.RealNode(c.Node.Name), c.Node.Name, c.Node.LogDir, c.Node.LogLinkDir
	state.KubeletLink = c.Node.KubeletLink
	return o.Dir.WriteState(state)
}

// ImportImages imports a file into the node of dir and returns the images' names.
// An OCI layout that names its images by tags alone, or not at all, needs a name.
func ImportImages(ctx context.Context, dir datadir.Dir, file, name string, progress func(string)) ([]string, error) {
	store, err := openImages(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = store.Close() }()
	imported, err := store.Import(ctx, images.Source{File: file, Name: name}, progress)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, i := range imported {
		names = append(names, i.Name)
	}
	return names, nil
}

// ExportImages writes images of the node of dir into one archive, or all that it has but its own pause image. "-" is out;
// a file is there when all of it is.
func ExportImages(ctx context.Context, dir datadir.Dir, names []string, all bool, file string, out io.Writer, progress func(string)) error {
	store, err := openImages(dir)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	if all {
		has, err := store.List(ctx)
		if err != nil {
			return err
		}
		for _, i := range has {
			if i.Name != images.PauseImage { // every node makes it
				names = append(names, i.Name)
			}
		}
	}
	fill := func(w io.Writer) error { return store.Export(ctx, w, names, progress) }
	if file == "-" {
		return fill(out)
	}
	return atomicfile.WriteFrom(file, 0o644, fill)
}

// importImages imports what lies in the data directory's folders of images and archives. A node without some of them is better than none.
func (n *Node) importImages(ctx context.Context, rt *realnode.Node) {
	o := n.component.Options
	store, err := rt.Images()
	if err == nil {
		err = errors.Join(store.ImportFolder(ctx, o.Dir.Images(), o.Dir.ImagesImported(), o.Inform),
			importArchives(ctx, store, o.Dir, o.Inform), store.Close())
	}
	if err != nil {
		o.Logger.ErrorContext(ctx, "images of the data directory were not imported",
			"folders", []string{o.Dir.Images(), o.Dir.Airgap()}, "error", err)
		if o.Note != nil {
			o.Note("warning: " + err.Error())
		}
	}
}

// ListImages lists the images of the node of dir.
func ListImages(ctx context.Context, dir datadir.Dir) ([]images.Image, error) {
	store, err := openImages(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = store.Close() }()
	return store.List(ctx)
}

// openImages reaches the image store of the node of dir.
func openImages(dir datadir.Dir) (*images.Store, error) {
	state, err := dir.ReadState()
	if err != nil {
		return nil, err
	}
	if state.CRIEndpoint != "" {
		return nil, fmt.Errorf("the node uses the runtime at %s; import images with that runtime's own tool", state.CRIEndpoint)
	}
	store, err := realnode.OpenImages(realNodeConfig(stateOptions(dir, state, slog.New(slog.DiscardHandler))))
	if err != nil {
		return nil, fmt.Errorf("%w; images need the real node's containerd, which runs once `wasmplane up` has run", err)
	}
	return store, nil
}
