// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wasmplane/wasmplane/core/kubelet/localcsi"
	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
	"github.com/wasmplane/wasmplane/core/run"
)

const (
	// topologyKey is upstream's.
	topologyKey = "topology.hostpath.csi/node"
	// ephemeralKey of a volume's context says that the pod alone has the volume.
	ephemeralKey = "csi.storage.k8s.io/ephemeral"
	// ephemeralSize is what a pod's own volume has.
	ephemeralSize = 1 << 20
)

// driver is wasmplane's, with what the flags add or take away.
type driver struct {
	*localcsi.Driver
	o      options
	ledger *ledger
}

func newDriver(o options, logger *slog.Logger) (*driver, error) {
	root := filepath.Join(o.state, o.name)
	local, err := localcsi.New(localcsi.Config{
		Name: o.name, Root: root, Node: o.node, TopologyKey: topologyKey, Version: "v1", Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	l, err := openLedger(filepath.Join(root, "ledger.json"))
	return &driver{Driver: local, o: o, ledger: l}, err
}

// runDriver serves until ctx ends. A driver that has no volumes leaves no directory.
func runDriver(ctx context.Context, o options, log io.Writer) error {
	logger := slog.New(slog.NewTextHandler(log, nil))
	network, socket, err := place(o.endpoint)
	if err != nil {
		return err
	}
	if network != "unix" {
		return fmt.Errorf("--endpoint %q: a driver serves at a socket; expected unix://PATH or PATH", o.endpoint)
	}
	d, err := newDriver(o, logger)
	if err != nil {
		return err
	}
	logger.InfoContext(ctx, "serving a driver", "driver", o.name, "node", o.node, "socket", socket)
	err = run.Parallel(d.Run, func(ctx context.Context) error {
		return pluginwatch.Serve(ctx, socket, func(s *grpc.Server) {
			spec.RegisterIdentityServer(s, d)
			spec.RegisterControllerServer(s, d)
			spec.RegisterNodeServer(s, d)
		}, grpc.UnaryInterceptor(calls{log, logger}.intercept))
	})(ctx)
	return errors.Join(err, d.leave(context.WithoutCancel(ctx)))
}

// leave removes the directory of a driver that has no volumes.
func (d *driver) leave(ctx context.Context) error {
	all, err := d.ListVolumes(ctx, &spec.ListVolumesRequest{})
	if err != nil || len(all.GetEntries()) > 0 {
		return err
	}
	return os.RemoveAll(filepath.Join(d.o.state, d.o.name))
}

// GetPluginCapabilities implements the identity service.
func (d *driver) GetPluginCapabilities(
	ctx context.Context, r *spec.GetPluginCapabilitiesRequest,
) (*spec.GetPluginCapabilitiesResponse, error) {
	all, err := d.Driver.GetPluginCapabilities(ctx, r)
	if err == nil && !d.o.topology {
		all.Capabilities = slices.DeleteFunc(all.GetCapabilities(), func(c *spec.PluginCapability) bool {
			return c.GetService().GetType() == spec.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS
		})
	}
	return all, err
}

// ControllerGetCapabilities implements the controller service.
func (d *driver) ControllerGetCapabilities(
	ctx context.Context, r *spec.ControllerGetCapabilitiesRequest,
) (*spec.ControllerGetCapabilitiesResponse, error) {
	all, err := d.Driver.ControllerGetCapabilities(ctx, r)
	if err != nil {
		return nil, err
	}
	add := func(t spec.ControllerServiceCapability_RPC_Type) {
		all.Capabilities = append(all.GetCapabilities(),
			&spec.ControllerServiceCapability{Type: &spec.ControllerServiceCapability_Rpc{Rpc: &spec.ControllerServiceCapability_RPC{Type: t}}})
	}
	if d.o.attach {
		add(spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	}
	if d.o.modify {
		add(spec.ControllerServiceCapability_RPC_MODIFY_VOLUME)
	}
	if d.o.noControllerExpand {
		all.Capabilities = slices.DeleteFunc(all.GetCapabilities(), func(c *spec.ControllerServiceCapability) bool {
			return c.GetRpc().GetType() == spec.ControllerServiceCapability_RPC_EXPAND_VOLUME
		})
	}
	return all, nil
}

// NodeGetCapabilities implements the node service.
func (d *driver) NodeGetCapabilities(ctx context.Context, r *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	all, err := d.Driver.NodeGetCapabilities(ctx, r)
	if err == nil && d.o.noNodeExpansion {
		all.Capabilities = slices.DeleteFunc(all.GetCapabilities(), func(c *spec.NodeServiceCapability) bool {
			return c.GetRpc().GetType() == spec.NodeServiceCapability_RPC_EXPAND_VOLUME
		})
	}
	return all, err
}

// NodeGetInfo implements the node service.
func (d *driver) NodeGetInfo(ctx context.Context, r *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	info, err := d.Driver.NodeGetInfo(ctx, r)
	if err != nil {
		return nil, err
	}
	info.MaxVolumesPerNode = d.o.maxVolumes
	if d.o.attachLimit > 0 {
		info.MaxVolumesPerNode = d.o.attachLimit
	}
	if !d.o.topology {
		info.AccessibleTopology = nil
	}
	return info, nil
}

// plain is a capability as a driver of directories knows it: there is one node, so
// that what many may read one may; and no file system is made.
func plain(c *spec.VolumeCapability) {
	if m := c.GetAccessMode(); m.GetMode() == spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY {
		m.Mode = spec.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
	}
	if m := c.GetMount(); m != nil {
		m.FsType = ""
	}
}

// accepted refuses parameters that a volume cannot be modified by.
func (d *driver) accepted(parameters map[string]string) error {
	for name := range parameters {
		if !d.o.modify || !slices.Contains(d.o.mutable, name) {
			return status.Errorf(codes.InvalidArgument, "volumes cannot be modified by parameter %q: --accepted-mutable-parameter-names has %q", name, d.o.mutable)
		}
	}
	return nil
}

// CreateVolume implements the controller service.
func (d *driver) CreateVolume(ctx context.Context, r *spec.CreateVolumeRequest) (*spec.CreateVolumeResponse, error) {
	if err := d.accepted(r.GetMutableParameters()); err != nil {
		return nil, err
	}
	for _, c := range r.GetVolumeCapabilities() {
		plain(c)
	}
	answer, err := d.Driver.CreateVolume(ctx, r)
	if err != nil {
		return nil, err
	}
	answer.Volume.VolumeContext = r.GetParameters() // as upstream's
	if !d.o.topology {
		answer.Volume.AccessibleTopology = nil
	}
	return answer, nil
}

// DeleteVolume implements the controller service.
func (d *driver) DeleteVolume(ctx context.Context, r *spec.DeleteVolumeRequest) (*spec.DeleteVolumeResponse, error) {
	if err := d.check(r.GetVolumeId(), func(u use) string {
		if u.Attached || len(u.Staged)+len(u.Published) > 0 {
			return "it is in use"
		}
		return ""
	}); err != nil {
		return nil, err
	}
	answer, err := d.Driver.DeleteVolume(ctx, r)
	if err != nil {
		return nil, err
	}
	return answer, d.ledger.change(r.GetVolumeId(), func(u *use) { *u = use{} })
}

// ValidateVolumeCapabilities implements the controller service.
func (d *driver) ValidateVolumeCapabilities(
	ctx context.Context, r *spec.ValidateVolumeCapabilitiesRequest,
) (*spec.ValidateVolumeCapabilitiesResponse, error) {
	for _, c := range r.GetVolumeCapabilities() {
		plain(c)
	}
	return d.Driver.ValidateVolumeCapabilities(ctx, r)
}

// ControllerPublishVolume implements the controller service. It only keeps account.
func (d *driver) ControllerPublishVolume(
	_ context.Context, r *spec.ControllerPublishVolumeRequest,
) (*spec.ControllerPublishVolumeResponse, error) {
	switch has, err := d.Has(r.GetVolumeId()); {
	case !d.o.attach:
		return nil, status.Error(codes.Unimplemented, "volumes of this driver need not be attached")
	case r.GetVolumeId() == "" || r.GetVolumeCapability() == nil:
		return nil, status.Error(codes.InvalidArgument, "volume_id and volume_capability are needed")
	case r.GetNodeId() != d.o.node:
		return nil, status.Errorf(codes.NotFound, "there is no node %q: volumes of this driver are on node %s", r.GetNodeId(), d.o.node)
	case err != nil:
		return nil, status.Error(codes.Internal, err.Error())
	case !has:
		return nil, status.Errorf(codes.NotFound, "there is no volume %q", r.GetVolumeId())
	case d.o.attachLimit > 0 && d.ledger.attached(r.GetVolumeId()) >= d.o.attachLimit:
		return nil, status.Errorf(codes.ResourceExhausted, "no more than %d volumes can be attached", d.o.attachLimit)
	}
	return &spec.ControllerPublishVolumeResponse{}, d.ledger.change(r.GetVolumeId(), func(u *use) { u.Attached = true })
}

// ControllerUnpublishVolume implements the controller service.
func (d *driver) ControllerUnpublishVolume(
	_ context.Context, r *spec.ControllerUnpublishVolumeRequest,
) (*spec.ControllerUnpublishVolumeResponse, error) {
	if err := d.check(r.GetVolumeId(), func(u use) string {
		if len(u.Staged)+len(u.Published) > 0 {
			return "it is staged or published"
		}
		return ""
	}); err != nil {
		return nil, err
	}
	return &spec.ControllerUnpublishVolumeResponse{}, d.ledger.change(r.GetVolumeId(), func(u *use) { u.Attached = false })
}

// ControllerModifyVolume implements the controller service: the parameters change
// nothing, as upstream's.
func (d *driver) ControllerModifyVolume(
	_ context.Context, r *spec.ControllerModifyVolumeRequest,
) (*spec.ControllerModifyVolumeResponse, error) {
	has, err := d.Has(r.GetVolumeId())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if !has {
		return nil, status.Errorf(codes.NotFound, "there is no volume %q", r.GetVolumeId())
	}
	return &spec.ControllerModifyVolumeResponse{}, d.accepted(r.GetMutableParameters())
}

// ControllerExpandVolume implements the controller service.
func (d *driver) ControllerExpandVolume(
	ctx context.Context, r *spec.ControllerExpandVolumeRequest,
) (*spec.ControllerExpandVolumeResponse, error) {
	if d.o.noControllerExpand {
		return nil, status.Error(codes.Unimplemented, "only nodes expand volumes of this driver (--disable-controller-expansion)")
	}
	answer, err := d.Driver.ControllerExpandVolume(ctx, r)
	if err == nil {
		answer.NodeExpansionRequired = d.o.nodeExpand && !d.o.noNodeExpansion
	}
	return answer, err
}

// NodeStageVolume implements the node service.
func (d *driver) NodeStageVolume(ctx context.Context, r *spec.NodeStageVolumeRequest) (*spec.NodeStageVolumeResponse, error) {
	plain(r.GetVolumeCapability())
	if err := d.check(r.GetVolumeId(), func(u use) string {
		if d.o.attach && !u.Attached {
			return "it is not attached"
		}
		return ""
	}); err != nil {
		return nil, err
	}
	r.VolumeContext = nil // has nothing that wasmplane's driver may go by
	answer, err := d.Driver.NodeStageVolume(ctx, r)
	if err != nil {
		return nil, err
	}
	return answer, d.ledger.change(r.GetVolumeId(), func(u *use) { u.Staged = with(u.Staged, r.GetStagingTargetPath()) })
}

// NodeUnstageVolume implements the node service.
func (d *driver) NodeUnstageVolume(ctx context.Context, r *spec.NodeUnstageVolumeRequest) (*spec.NodeUnstageVolumeResponse, error) {
	if err := d.check(r.GetVolumeId(), func(u use) string {
		if len(u.Published) > 0 && len(without(u.Staged, r.GetStagingTargetPath())) == 0 {
			return "it is published"
		}
		return ""
	}); err != nil {
		return nil, err
	}
	if err := d.ledger.change(r.GetVolumeId(), func(u *use) { u.Staged = without(u.Staged, r.GetStagingTargetPath()) }); err != nil {
		return nil, err
	}
	if len(d.ledger.of(r.GetVolumeId()).Staged) > 0 {
		return &spec.NodeUnstageVolumeResponse{}, nil // another PersistentVolume is the same volume, and has it
	}
	return d.Driver.NodeUnstageVolume(ctx, r)
}

// NodePublishVolume implements the node service. A pod's own volume is made here.
func (d *driver) NodePublishVolume(ctx context.Context, r *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	plain(r.GetVolumeCapability())
	if r.GetVolumeContext()[ephemeralKey] == "true" {
		return d.publishOwn(ctx, r)
	}
	if err := d.check(r.GetVolumeId(), func(u use) string {
		if !slices.Contains(u.Staged, r.GetStagingTargetPath()) {
			return "it is not staged at " + r.GetStagingTargetPath()
		}
		return ""
	}); err != nil {
		return nil, err
	}
	if err := d.ledger.change(r.GetVolumeId(), func(u *use) { u.Published = with(u.Published, r.GetTargetPath()) }); err != nil {
		return nil, err
	}
	answer, err := d.Driver.NodePublishVolume(ctx, r)
	if err != nil {
		err = errors.Join(err, d.ledger.change(r.GetVolumeId(), func(u *use) { u.Published = without(u.Published, r.GetTargetPath()) }))
	}
	return answer, err
}

// publishOwn makes a pod's own volume, of which the pod's ID for it is the name.
func (d *driver) publishOwn(ctx context.Context, r *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	made, err := d.Driver.CreateVolume(ctx, &spec.CreateVolumeRequest{
		Name: r.GetVolumeId(), CapacityRange: &spec.CapacityRange{RequiredBytes: ephemeralSize},
		VolumeCapabilities: []*spec.VolumeCapability{r.GetVolumeCapability()},
	})
	if err != nil {
		return nil, err
	}
	if err := d.ledger.change(r.GetVolumeId(), func(u *use) { u.Own = made.GetVolume().GetVolumeId() }); err != nil {
		return nil, err
	}
	r.VolumeId, r.StagingTargetPath = made.GetVolume().GetVolumeId(), "/" // it is not staged
	return d.Driver.NodePublishVolume(ctx, r)
}

// NodeGetVolumeStats implements the node service.
func (d *driver) NodeGetVolumeStats(ctx context.Context, r *spec.NodeGetVolumeStatsRequest) (*spec.NodeGetVolumeStatsResponse, error) {
	if own := d.ledger.of(r.GetVolumeId()).Own; own != "" {
		r.VolumeId = own
	}
	return d.Driver.NodeGetVolumeStats(ctx, r)
}

// NodeUnpublishVolume implements the node service. A pod's own volume is removed here.
func (d *driver) NodeUnpublishVolume(ctx context.Context, r *spec.NodeUnpublishVolumeRequest) (*spec.NodeUnpublishVolumeResponse, error) {
	answer, err := d.Driver.NodeUnpublishVolume(ctx, r)
	if err != nil {
		return nil, err
	}
	if own := d.ledger.of(r.GetVolumeId()).Own; own != "" {
		if err := d.Remove(ctx, own); err != nil {
			return nil, err
		}
		return answer, d.ledger.change(r.GetVolumeId(), func(u *use) { *u = use{} })
	}
	return answer, d.ledger.change(r.GetVolumeId(), func(u *use) { u.Published = without(u.Published, r.GetTargetPath()) })
}

// check refuses a call that comes at the wrong time, where that is asked for.
func (d *driver) check(id string, why func(use) string) error {
	if !d.o.lifecycle {
		return nil
	}
	if w := why(d.ledger.of(id)); w != "" {
		return status.Errorf(codes.FailedPrecondition, "volume %s: %s (--check-volume-lifecycle)", id, w)
	}
	return nil
}
