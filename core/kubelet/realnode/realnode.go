// SPDX-License-Identifier: Apache-2.0

// Package realnode puts a real node's parts together: the embedded containerd, the
// sandbox image, the pod network, and the CRI adapter that the kubelet drives.
//
// All of a node's state lies below one directory, and all of its host-wide names
// come from one Names, so that Remove can leave the machine as it was.
package realnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/containerd"
	"github.com/wasmplane/wasmplane/core/kubelet/cri"
	"github.com/wasmplane/wasmplane/core/kubelet/images"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/network"
	"github.com/wasmplane/wasmplane/core/run"
)

// Config is a real node with the embedded runtime.
type Config struct {
	// Cluster gives the host-wide names. Two nodes of one cluster on one machine
	// need different ones: say "name/node".
	Cluster string
	// Dir is the node's private directory, absolute.
	Dir string
	// Containerd overrides its defaults; Dir, Names and Log are set from here. With a
	// CNIConfDir of its own the pod network is somebody else's: see SetPodCIDRs.
	Containerd containerd.Config
	// Registries say how registries are reached.
	Registries []images.Registry
	// MTU of the pods' links; the kernel's default when zero.
	MTU int
	// ReservedTCPPorts and ReservedUDPPorts are ports of the node that no pod gets as its hostPort.
	ReservedTCPPorts, ReservedUDPPorts []int32
	// CheckNetwork is how often the network is looked at for what others did to it; default 30 s.
	CheckNetwork time.Duration
	Log          *slog.Logger
}

func (c Config) names() linuxhost.Names { return linuxhost.NamesOf(c.Cluster) }

func (c Config) containerd() containerd.Config {
	child := c.Containerd
	child.Dir, child.Names, child.Log = c.Dir, c.names(), c.Log
	if child.CNIConfDir == "" {
		child.Launching = func() func(context.Context, func(string) bool) error { return network.FindRecords(c.network()) }
	}
	return child
}

func (c Config) network() network.Config {
	return network.Config{
		Names: c.names(), MTU: c.MTU, ReservedTCPPorts: c.ReservedTCPPorts, ReservedUDPPorts: c.ReservedUDPPorts,
		ConfDir: filepath.Join(c.Dir, "etc/cni"), StateDir: filepath.Join(c.Dir, "net"),
	}
}

// Node is a running node's runtime.
type Node struct {
	cfg    Config
	child  *containerd.Child
	engine *cri.Engine
	mu     sync.Mutex      // guards the network's set-up
	net    *network.Config // as it was set up; nil = not yet
}

// Start adopts or starts containerd, imports the sandbox image and answers when
// pods can be run, but for their network: see SetPodCIDRs.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := images.WriteRegistries(cfg.containerd().RegistryDir(), cfg.Registries); err != nil {
		return nil, err
	}
	child, err := containerd.Start(ctx, cfg.containerd())
	if err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, child: child}
	if err := n.prepare(ctx); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

func (n *Node) prepare(ctx context.Context) (err error) {
	store, err := n.Images()
	if err != nil {
		return err
	}
	if err := errors.Join(store.EnsurePause(ctx), store.Close()); err != nil {
		return err
	}
	n.engine, err = cri.New(cri.Config{Endpoint: n.child.Socket()})
	return err
}

// Engine drives the node's containers.
func (n *Node) Engine() *cri.Engine { return n.engine }

// Socket is containerd's, for CRI clients.
func (n *Node) Socket() string { return n.child.Socket() }

// Adopted tells whether containerd ran already.
func (n *Node) Adopted() bool { return n.child.Adopted() }

// Names are the host-wide names in use; the kubelet puts pods below PodsCgroup.
func (n *Node) Names() linuxhost.Names { return n.cfg.names() }

// Images opens the image store. The caller closes it.
func (n *Node) Images() (*images.Store, error) {
	return images.Open(n.child.Socket(), n.cfg.Containerd.Snapshotter)
}

// SetPodCIDRs sets the pod network up for the ranges of the node, and of the whole
// cluster. Until it has been called the engine reports that the network is not
// ready. It may be called again. Where another network was configured it does
// nothing: that network looks at the node itself.
func (n *Node) SetPodCIDRs(ctx context.Context, pods, cluster []netip.Prefix) error {
	if n.cfg.Containerd.CNIConfDir != "" {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	cfg := n.cfg.network()
	cfg.PodCIDRs, cfg.ClusterCIDRs, cfg.PluginDir = pods, cluster, n.child.PluginDir()
	if err := network.Setup(ctx, cfg); err != nil {
		return err
	}
	n.net = &cfg
	return nil
}

// Run keeps containerd running, and the pods' network as it was set up, until ctx ends. It
// leaves both as they are then.
func (n *Node) Run(ctx context.Context) error {
	return run.Together(ctx, n.child.Run, n.keepNetwork)
}

// keepNetwork looks now and then for what others took out of nftables.
func (n *Node) keepNetwork(ctx context.Context) error {
	for run.Sleep(ctx, cmp.Or(n.cfg.CheckNetwork, checkNetwork)) {
		missing, err := n.repairNetwork(ctx)
		if len(missing) > 0 {
			n.cfg.Log.WarnContext(ctx, "another program removed nftables tables of the pods' network: they are written again", "tables", missing)
		}
		if err != nil && ctx.Err() == nil {
			n.cfg.Log.ErrorContext(ctx, "nftables tables of the pods' network cannot be checked or written again; trying again in a while", "error", err)
		}
	}
	return nil
}

func (n *Node) repairNetwork(ctx context.Context) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.net == nil {
		return nil, nil
	}
	return network.Repair(ctx, *n.net)
}

// Close lets go of the node: containerd and the pods run on.
func (n *Node) Close() {
	if n.engine != nil {
		_ = n.engine.Close() // its connections are local; nothing is lost
	}
	n.child.Close()
}

// checkNetwork is as often as Services and policies are looked at.
const checkNetwork = 30 * time.Second

const (
	removeTimeout = 30 * time.Second
	removeAtOnce  = 8
)

// Remove takes a node's pods, processes, mounts, cgroups and network off the
// machine, whether or not it runs; images and the directory stay. Containers get
// grace seconds to end when containerd answers. It may be called again after a
// failure.
func Remove(ctx context.Context, cfg Config, grace int64) error {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	child := cfg.containerd()
	if containerd.Running(child) != 0 {
		if err := politely(ctx, child, grace); err != nil {
			cfg.Log.WarnContext(ctx, "pods were not stopped in order and are killed", "error", err)
		}
	}
	// The network after the processes, and both even if one fails.
	return errors.Join(containerd.Remove(ctx, child), network.Remove(ctx, cfg.network()))
}

// politely stops all containers by way of CRI.
func politely(ctx context.Context, child containerd.Config, grace int64) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout+time.Duration(grace)*time.Second)
	defer cancel()
	e, err := cri.New(cri.Config{Endpoint: child.Socket()})
	if err != nil {
		return err
	}
	defer e.Close()
	containers, err := e.ListContainers(ctx)
	if err != nil {
		return err
	}
	err = each(containers, func(c *runtime.Container) error {
		if c.State != runtime.ContainerState_CONTAINER_RUNNING {
			return nil
		}
		return e.StopContainer(ctx, c.Id, grace)
	})
	sandboxes, listErr := e.ListSandboxes(ctx)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	return errors.Join(err, each(sandboxes, func(s *runtime.PodSandbox) error {
		if err := e.StopSandbox(ctx, s.Id); err != nil {
			return err
		}
		return e.RemoveSandbox(ctx, s.Id)
	}))
}

// mostErrors bounds how many of a node's pods say why they could not be stopped: after a runtime's end all say the same.
const mostErrors = 5

// each does it for all items, several at once, and answers the first mostErrors errors and the count of the others.
func each[T any](items []T, do func(T) error) error {
	var (
		wg    sync.WaitGroup
		slots = make(chan struct{}, removeAtOnce)
		errs  = make([]error, len(items))
	)
	for i, item := range items {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(item)
		})
	}
	wg.Wait()
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 0 {
		return nil
	}
	if more := len(errs) - mostErrors; more > 0 {
		errs = append(errs[:mostErrors], fmt.Errorf("and %d more", more))
	}
	return fmt.Errorf("stop the pods: %w", errors.Join(errs...))
}
