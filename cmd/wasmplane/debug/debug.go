// SPDX-License-Identifier: Apache-2.0

// Package debug is the command `wasmplane debug`: views of a cluster for who wants to know how its
// parts work together. `debug graph` says who reads and writes which kind.
package debug

import (
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/core/accessgraph"
	"github.com/wasmplane/wasmplane/core/bootstrap/roles"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/controllers/all"
	"github.com/wasmplane/wasmplane/core/controllers/nodeipam"
	"github.com/wasmplane/wasmplane/core/controllers/serviceaccount"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/declared"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Command is `wasmplane debug`.
func Command(s *shell.Shell) *cobra.Command {
	c := &cobra.Command{
		Use: "debug", Short: "Show how the parts of a cluster work together",
	}
	c.AddCommand(graph(s))
	return c
}

func graph(s *shell.Shell) *cobra.Command {
	var file, output string
	c := &cobra.Command{
		Use: "graph [NAME ...]", Short: "Show who reads and writes which kind of object, and who wakes whom",
		Long: `Show which kinds of objects controllers, the scheduler, nodes and Wasm plugins
read and write. This is what they declare, not what they were seen to do. A
controller declares its informers and the rights of its identity, a plugin its
hooks and the grants of its entry, and a reconciler the rights of its service
account too.

Two that write what the other one watches wake each other: a loop. Loops with a
plugin are listed. Most others are how controllers work together: they are only
counted, unless you give a NAME. A "!" marks a loop in which both write the same
kind, and may undo each other's work.

Give NAMEs of actors (job-controller) or kinds (jobs.batch) to see only what
concerns them.

The running cluster is asked for its plugins and roles, which takes the rights of
an administrator. Which controllers are on is read from its configuration file
(--config). With --offline the file alone counts: its local modules are loaded,
and roles are those of a new cluster.`,
		Example: `  wasmplane debug graph jobs.batch
  wasmplane debug graph --config cluster.yaml -o svg > graph.svg
  wasmplane debug graph --config cluster.yaml --offline my-plugin`,
		Args: cobra.ArbitraryArgs,
	}
	access := s.Access(c.Flags())
	c.Flags().StringVar(&file, "config", "", "configuration `FILE` of the cluster (default: all controllers are on; with --offline there are no plugins)")
	offline := c.Flags().Bool("offline", false, "read the configuration file alone, and ask no cluster")
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg := config.Default()
		if file != "" {
			var err error
			if cfg, err = config.LoadFile(file); err != nil {
				return err
			}
		}
		var actors []accessgraph.Actor
		var err error
		if *offline {
			actors, err = configured(c.Context(), cfg, access)
		} else {
			actors, err = running(c.Context(), cfg, access)
		}
		if err != nil {
			return err
		}
		part, err := accessgraph.New(actors).Only(args)
		if err != nil {
			return err
		}
		return part.Write(s.Out, output)
	}
	shell.OutputFlag(c, &output, accessgraph.Formats()...)
	return c
}

// configured are the actors that a configuration makes, in a new cluster.
func configured(ctx context.Context, cfg *config.Configuration, access *shell.Access) ([]accessgraph.Actor, error) {
	policy := roles.Policy()
	rights := accessgraph.Rights{ClusterRoles: policy.ClusterRoles, ClusterRoleBindings: policy.ClusterRoleBindings}
	for namespace, list := range policy.Roles {
		for _, r := range list {
			r.Namespace = namespace
			rights.Roles = append(rights.Roles, r)
		}
	}
	for namespace, list := range policy.RoleBindings {
		for _, b := range list {
			b.Namespace = namespace
			rights.RoleBindings = append(rights.RoleBindings, b)
		}
	}
	actors, err := builtIn(ctx, cfg, &rights)
	if err != nil {
		return nil, err
	}
	dir, err := access.Dir()
	if err != nil {
		return nil, err
	}
	plugins, err := ofEntries(ctx, cfg, dir)
	return append(actors, plugins...), err
}

// running are those of a cluster that runs.
func running(ctx context.Context, cfg *config.Configuration, access *shell.Access) ([]accessgraph.Actor, error) {
	set, err := access.Client("debug")
	if err != nil {
		return nil, fmt.Errorf("%w; --offline reads the configuration file alone", err)
	}
	rights, err := readRights(ctx, set)
	if err != nil {
		return nil, fmt.Errorf("%w; --offline reads the configuration file alone", err)
	}
	actors, err := builtIn(ctx, cfg, rights)
	if err != nil {
		return nil, err
	}
	plugins, err := apiobject.List(ctx, set.Dynamic)
	if err != nil {
		return nil, err
	}
	for _, l := range plugins {
		name := l.Name
		if l.Namespace != "" {
			name = l.Namespace + "/" + l.Name
		}
		if l.State == "disabled" {
			continue
		}
		a := plugin(name, l.Kinds)
		if l.Kinds == nil {
			a.Notes = append(a.Notes, "what it declares is not known, as it is "+l.State)
		}
		if l.Kinds != nil && l.Kinds.Account != "" {
			a.AllowBesides(rights.Of(accessgraph.ServiceAccount(l.Kinds.Account)))
		}
		actors = append(actors, a)
	}
	return actors, nil
}

func readRights(ctx context.Context, set *client.Set) (*accessgraph.Rights, error) {
	rbac, all := set.Kube.RbacV1(), metav1.ListOptions{}
	clusterRoles, err := rbac.ClusterRoles().List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("read the roles of the cluster: %w", err)
	}
	bindings, err := rbac.ClusterRoleBindings().List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("read the bindings of the cluster: %w", err)
	}
	local, err := rbac.Roles(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("read the roles of namespaces: %w", err)
	}
	localBindings, err := rbac.RoleBindings(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("read the bindings of namespaces: %w", err)
	}
	return &accessgraph.Rights{
		ClusterRoles: clusterRoles.Items, ClusterRoleBindings: bindings.Items, Roles: local.Items, RoleBindings: localBindings.Items,
	}, nil
}

// builtIn are the controllers that a configuration chooses, the scheduler and the nodes.
func builtIn(ctx context.Context, cfg *config.Configuration, rights *accessgraph.Rights) ([]accessgraph.Actor, error) {
	// Controllers are built, and never run: their clients lead nowhere.
	nowhere := func(string) (*client.Set, error) { return client.New(&rest.Config{Host: "https://invalid.invalid"}) }
	declarations, err := all.Declared(ctx, all.Config{
		Controllers: cfg.Controllers.Enabled, Clients: nowhere,
		// What the keys of a cluster let run is built as well, without the keys.
		RootCA: func() []byte { return []byte("none") }, Minter: struct{ serviceaccount.Minter }{},
		CertificateAuthority: func() (*x509.Certificate, []byte, crypto.Signer) { return nil, nil, nil },
		BootstrapTokens:      cfg.APIServer.BootstrapTokens, PodGroups: cfg.FeatureGates[config.GenericWorkload],
		PoolStatus: cfg.FeatureGates[config.DRAResourcePoolStatus],
		// Any network will do: the one of a cluster may be chosen at its first start only.
		NodeIPAM: nodeipam.Config{CIDRs: []string{"10.0.0.0/16"}, NodeBits: []int{24}},
	})
	if err != nil {
		return nil, err
	}
	var actors []accessgraph.Actor
	for _, d := range declarations {
		a := accessgraph.Actor{Name: d.Name, Role: accessgraph.Controller, Identity: "kube-system/" + d.Account}
		if d.Account == "" {
			a.Identity = "system:kube-controller-manager"
			a.Allow(rights.Of(a.Identity))
		} else {
			a.Allow(rights.Of(accessgraph.ServiceAccount(a.Identity)))
		}
		for _, r := range d.Informers {
			a.Watches = append(a.Watches, accessgraph.Kind(r.Group, r.Resource))
		}
		actors = append(actors, a)
	}
	scheduler := accessgraph.Actor{Name: "scheduler", Role: accessgraph.Scheduler, Identity: "system:kube-scheduler"}
	scheduler.Allow(rights.Of(scheduler.Identity))
	// What a node may do is a role that nobody is bound to: the node authorizer gives each node its part.
	kubelet := accessgraph.Actor{Name: "kubelet", Role: accessgraph.Node, Identity: "system:node:NAME"}
	kubelet.Allow(rights.ClusterRole("system:node"))
	proxy := accessgraph.Actor{Name: "proxy", Role: accessgraph.Node, Identity: "system:kube-proxy"}
	proxy.Allow(rights.ClusterRole("system:node-proxier"))
	return append(actors, scheduler, kubelet, proxy), nil
}

// ofEntries are the plugins of a configuration file: local modules are asked what they are.
func ofEntries(ctx context.Context, cfg *config.Configuration, dir datadir.Dir) ([]accessgraph.Actor, error) {
	entries, err := manifest.OfFile(cfg)
	if err != nil {
		return nil, err
	}
	cache := ""
	if dir.Exists() {
		cache = dir.PluginCache()
	}
	var actors []accessgraph.Actor
	for _, e := range entries {
		switch {
		case e.Disabled || e.Group != nil:
			continue
		case !strings.HasPrefix(e.Source, "file:"):
			a := plugin(e.Name, nil)
			a.Notes = []string{"what it declares is not known, as its module is not a local file: ask the cluster that has loaded it (without --offline)"}
			actors = append(actors, a)
			continue
		}
		p, err := author.Open(ctx, author.Config{Entry: e, Dir: filepath.Dir(cfg.File), CacheDir: cache})
		if err != nil {
			return nil, fmt.Errorf("plugin %s: %w", e.Name, err)
		}
		m := p.Manifest()
		kinds := declared.Of(m, &e)
		if err := p.Close(ctx); err != nil {
			return nil, fmt.Errorf("plugin %s: %w", e.Name, err)
		}
		a := plugin(e.Name, &kinds)
		if kinds.Account != "" {
			a.Notes = []string{"it may write more than what it owns: the rights of service account " + kinds.Account + " are in the cluster"}
		}
		actors = append(actors, a)
	}
	return actors, nil
}

func plugin(name string, k *declared.Kinds) accessgraph.Actor {
	a := accessgraph.Actor{Name: name, Role: accessgraph.Plugin}
	if k != nil {
		a.Identity, a.Watches, a.Reads, a.Writes = k.Account, k.Watches, k.Reads, k.Writes
	}
	return a
}
