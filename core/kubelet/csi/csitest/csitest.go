// SPDX-License-Identifier: Apache-2.0

// Package csitest is a CSI driver for tests: its volumes are directories, which it
// really mounts. It serves the identity, controller and node services, registers with a
// kubelet as drivers' registrars do, and can be told to hang, fail or lie.
//
// What it holds is below its directory alone, so that a driver that is started again goes
// on where another was killed.
package csitest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/wasmplane/wasmplane/core/run"
)

// Config of a Driver.
type Config struct {
	// Name under which it registers.
	Name string
	// Dir is where its volumes are.
	Dir string
	// Socket of its CSI services.
	Socket string
	// Registry is the kubelet's directory for registration; empty: it does not register.
	Registry string
	// NodeID of this node, and its topology (nil: none).
	NodeID   string
	Topology map[string]string
	// MaxVolumes of a node; 0 = as many as there are.
	MaxVolumes int64
	// Versions that it says to support ("1.0.0" if empty).
	Versions []string
	// Without are node capabilities that it does not have.
	Without []spec.NodeServiceCapability_RPC_Type
	// MountGroup: it gives volumes to groups itself.
	MountGroup bool
	// Attach: it wants its volumes to be attached.
	Attach bool
}

// Driver is the test driver.
type Driver struct {
	Config
	spec.UnimplementedIdentityServer
	spec.UnimplementedControllerServer
	spec.UnimplementedNodeServer

	mu     sync.Mutex
	before func(ctx context.Context, method string, request any) error
	info   func(ctx context.Context, answer *spec.NodeGetInfoResponse)
	calls  []Call
	// Registered is told what the kubelet says of each registration; never blocks.
	registered chan *registration.RegistrationStatus
}

// Call that was made.
type Call struct {
	Method  string
	Request any
	Err     error
}

// ErrLie makes a call answer that all is well, with nothing done.
var ErrLie = errors.New("the driver lies")

// New makes a driver; Run serves it.
func New(cfg Config) *Driver {
	return &Driver{Config: cfg, registered: make(chan *registration.RegistrationStatus, 100)}
}

// Before is called before each call, and may hold it up, fail it, or answer ErrLie.
func (d *Driver) Before(f func(ctx context.Context, method string, request any) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before = f
}

// Calls that ended so far, by method.
func (d *Driver) Calls(method string) []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []Call
	for _, c := range d.calls {
		if c.Method == method {
			out = append(out, c)
		}
	}
	return out
}

// Registered answers what the kubelet said of registrations.
func (d *Driver) Registered() <-chan *registration.RegistrationStatus { return d.registered }

// Run serves until ctx ends. Its sockets are gone then; its mounts stay.
func (d *Driver) Run(ctx context.Context) error {
	for _, dir := range []string{d.Dir, filepath.Dir(d.Socket), d.Registry} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("make the driver's directory: %w", err)
		}
	}
	parts := []func(context.Context) error{func(ctx context.Context) error {
		return serve(ctx, d.Socket, d.intercept, func(s *grpc.Server) {
			spec.RegisterIdentityServer(s, d)
			spec.RegisterControllerServer(s, d)
			spec.RegisterNodeServer(s, d)
		})
	}}
	if d.Registry != "" {
		parts = append(parts, func(ctx context.Context) error {
			return serve(ctx, filepath.Join(d.Registry, d.Name+"-reg.sock"), nil, func(s *grpc.Server) {
				registration.RegisterRegistrationServer(s, registrar{driver: d})
			})
		})
	}
	return run.Together(ctx, parts...)
}

func serve(ctx context.Context, socket string, intercept grpc.UnaryServerInterceptor, register func(*grpc.Server)) error {
	_ = os.Remove(socket) // of one that was killed
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("serve a driver: %w", err)
	}
	var options []grpc.ServerOption
	if intercept != nil {
		options = append(options, grpc.UnaryInterceptor(intercept))
	}
	s := grpc.NewServer(options...)
	register(s)
	done := run.Go("csitest: "+filepath.Base(socket), func() error { return s.Serve(l) })
	<-ctx.Done()
	s.Stop()
	if err := <-done; !errors.Is(err, grpc.ErrServerStopped) { // it had not begun
		return err
	}
	return nil
}

// intercept records calls, and lets the test have its say.
func (d *Driver) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	method := path.Base(info.FullMethod)
	d.mu.Lock()
	before := d.before
	d.mu.Unlock()
	if before != nil {
		err = before(ctx, method, req)
	}
	switch {
	case errors.Is(err, ErrLie):
		answer, err = lies[method], nil
	case err == nil:
		answer, err = handle(ctx, req)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, Call{method, req, err})
	return answer, err
}

var lies = map[string]any{
	"NodeStageVolume": &spec.NodeStageVolumeResponse{}, "NodeUnstageVolume": &spec.NodeUnstageVolumeResponse{},
	"NodePublishVolume": &spec.NodePublishVolumeResponse{}, "NodeUnpublishVolume": &spec.NodeUnpublishVolumeResponse{},
}

type registrar struct {
	registration.UnimplementedRegistrationServer
	driver *Driver
}

func (r registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	versions := r.driver.Versions
	if len(versions) == 0 {
		versions = []string{"1.0.0"}
	}
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: r.driver.Name, Endpoint: r.driver.Socket,
		SupportedVersions: versions,
	}, nil
}

func (r registrar) NotifyRegistrationStatus(_ context.Context,
	s *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	select {
	case r.driver.registered <- s:
	default:
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// NodeGetCapabilities implements the node service.
func (d *Driver) NodeGetCapabilities(context.Context, *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	all := []spec.NodeServiceCapability_RPC_Type{
		spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, spec.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		spec.NodeServiceCapability_RPC_EXPAND_VOLUME, spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if d.MountGroup {
		all = append(all, spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	}
	out := &spec.NodeGetCapabilitiesResponse{}
	for _, t := range all {
		if !slices.Contains(d.Without, t) {
			out.Capabilities = append(out.Capabilities,
				&spec.NodeServiceCapability{Type: &spec.NodeServiceCapability_Rpc{Rpc: &spec.NodeServiceCapability_RPC{Type: t}}})
		}
	}
	return out, nil
}

// Answer has f change what the driver says of the node from now on.
func (d *Driver) Answer(f func(ctx context.Context, answer *spec.NodeGetInfoResponse)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.info = f
}

// NodeGetInfo implements the node service.
func (d *Driver) NodeGetInfo(ctx context.Context, _ *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	out := &spec.NodeGetInfoResponse{NodeId: d.NodeID, MaxVolumesPerNode: d.MaxVolumes}
	if d.Topology != nil {
		out.AccessibleTopology = &spec.Topology{Segments: d.Topology}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.info != nil {
		d.info(ctx, out)
	}
	return out, nil
}
