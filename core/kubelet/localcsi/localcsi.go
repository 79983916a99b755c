// SPDX-License-Identifier: Apache-2.0

// Package localcsi is a CSI driver whose volumes are on the node's own disk: directories, or images (file systems in
// sparse files) for file systems, and loop devices over sparse files for blocks. Snapshots and clones
// share the blocks of what they are made of where the file system can (FICLONE), and are
// copies elsewhere.
//
// All that it knows is on the disk. A volume or snapshot is one directory with a record
// in it; it is made beside and renamed into place when it is whole, and renamed away
// before it is removed, so that a crash leaves nothing half made to be found. IDs are
// names of those directories, and nothing else is ever taken for one.
//
// The size of a directory is a request and no limit: it is counted against the disk when
// the volume is made, and what a pod writes is not held back. A block device, and the file system of an image, is as large
// as was asked for. Blocks that nobody wrote take no room. An image is mounted in the driver's own directory from when it
// is staged until it is unstaged.
//
// What takes long (copies) goes on when the caller gives up, so that asking again finds it
// further; deleting what is being made ends it.
package localcsi

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
	"github.com/wasmplane/wasmplane/core/run"
)

// Config of a Driver. Name, Root and Node are required.
type Config struct {
	// Name under which it registers.
	Name string
	// Root is the directory in which its volumes are; it is the driver's alone.
	Root string
	// Node is this node's name to the driver, and TopologyKey the label by which its
	// volumes say that they are here.
	Node, TopologyKey string
	// Socket at which it serves.
	Socket string
	// Registry is the kubelet's directory for registration; empty: it does not register.
	Registry string
	Version  string
	Logger   *slog.Logger
}

// Driver is the CSI driver of a node.
type Driver struct {
	spec.UnimplementedIdentityServer
	spec.UnimplementedControllerServer
	spec.UnimplementedNodeServer

	cfg  Config
	disk disk
	jobs jobs

	mu sync.Mutex
	// busy are volumes and snapshots about which a call is at work, and when it has ended.
	busy map[string]chan struct{}
	// reserved is the room of what is being made.
	reserved map[string]int64
}

// New makes the driver's directory, and removes what a crash left half made in it.
func New(cfg Config) (*Driver, error) {
	if cfg.Name == "" || cfg.Node == "" || cfg.TopologyKey == "" || !filepath.IsAbs(cfg.Root) {
		return nil, errors.New("the driver of local volumes needs a name, a node, a topology key and an absolute directory")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Driver{cfg: cfg, disk: disk{filepath.Clean(cfg.Root)}, busy: map[string]chan struct{}{}, reserved: map[string]int64{}}
	d.jobs.queue = make(chan *job)
	if err := d.disk.open(); err != nil {
		return nil, err
	}
	return d, d.disk.thaw()
}

// Run serves at the socket, registers with the kubelet, and makes what is asked for,
// until ctx ends. Its sockets are gone then; what is mounted stays.
func (d *Driver) Run(ctx context.Context) error {
	parts := []func(context.Context) error{d.jobs.run}
	if d.cfg.Socket != "" {
		parts = append(parts, func(ctx context.Context) error {
			return pluginwatch.Serve(ctx, d.cfg.Socket, func(s *grpc.Server) {
				spec.RegisterIdentityServer(s, d)
				spec.RegisterControllerServer(s, d)
				spec.RegisterNodeServer(s, d)
			})
		})
	}
	if d.cfg.Registry != "" {
		parts = append(parts, func(ctx context.Context) error {
			return pluginwatch.Serve(ctx, filepath.Join(d.cfg.Registry, d.cfg.Name+"-reg.sock"), func(s *grpc.Server) {
				registration.RegisterRegistrationServer(s, registrar{driver: d})
			})
		})
	}
	return run.Parallel(parts...)(ctx)
}

// registrar is what the kubelet asks when the driver's second socket appears.
type registrar struct {
	registration.UnimplementedRegistrationServer
	driver *Driver
}

func (r registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: r.driver.cfg.Name, Endpoint: r.driver.cfg.Socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r registrar) NotifyRegistrationStatus(ctx context.Context,
	s *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	if !s.GetPluginRegistered() {
		r.driver.cfg.Logger.WarnContext(ctx, "the driver of local volumes was not registered", "error", s.GetError())
	}
	return &registration.RegistrationStatusResponse{}, nil
}
