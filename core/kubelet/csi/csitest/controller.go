// SPDX-License-Identifier: Apache-2.0

package csitest

import (
	"context"
	"os"
	"path/filepath"
	"strconv"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// GetPluginInfo implements the identity service.
func (d *Driver) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{Name: d.Name, VendorVersion: "test"}, nil
}

// GetPluginCapabilities implements the identity service.
func (d *Driver) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	service := func(t spec.PluginCapability_Service_Type) *spec.PluginCapability {
		return &spec.PluginCapability{Type: &spec.PluginCapability_Service_{Service: &spec.PluginCapability_Service{Type: t}}}
	}
	out := &spec.GetPluginCapabilitiesResponse{Capabilities: []*spec.PluginCapability{
		service(spec.PluginCapability_Service_CONTROLLER_SERVICE),
		{Type: &spec.PluginCapability_VolumeExpansion_{
			VolumeExpansion: &spec.PluginCapability_VolumeExpansion{Type: spec.PluginCapability_VolumeExpansion_ONLINE},
		}},
	}}
	if d.Topology != nil {
		out.Capabilities = append(out.Capabilities, service(spec.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS))
	}
	return out, nil
}

// Probe implements the identity service.
func (d *Driver) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{}, nil
}

// ControllerGetCapabilities implements the controller service.
func (d *Driver) ControllerGetCapabilities(context.Context,
	*spec.ControllerGetCapabilitiesRequest,
) (*spec.ControllerGetCapabilitiesResponse, error) {
	all := []spec.ControllerServiceCapability_RPC_Type{
		spec.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, spec.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		spec.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if d.Attach {
		all = append(all, spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	}
	out := &spec.ControllerGetCapabilitiesResponse{}
	for _, t := range all {
		out.Capabilities = append(out.Capabilities,
			&spec.ControllerServiceCapability{Type: &spec.ControllerServiceCapability_Rpc{Rpc: &spec.ControllerServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

func (d *Driver) sizeFile(handle string) string { return filepath.Join(d.Dir, "."+handle+".size") }

func (d *Driver) resize(handle string, size int64) error {
	if err := os.WriteFile(d.sizeFile(handle), []byte(strconv.FormatInt(size, 10)), 0o600); err != nil {
		return internal(err)
	}
	return nil
}

// CreateVolume implements the controller service: a volume is called as was asked for.
func (d *Driver) CreateVolume(_ context.Context, r *spec.CreateVolumeRequest) (*spec.CreateVolumeResponse, error) {
	if r.GetName() == "" || filepath.Base(r.GetName()) != r.GetName() {
		return nil, status.Error(codes.InvalidArgument, "a volume's name is needed")
	}
	if err := os.MkdirAll(d.Path(r.GetName()), 0o777); err != nil {
		return nil, internal(err)
	}
	size := max(r.GetCapacityRange().GetRequiredBytes(), 1<<20)
	if err := d.resize(r.GetName(), size); err != nil {
		return nil, err
	}
	v := &spec.Volume{VolumeId: r.GetName(), CapacityBytes: size, VolumeContext: r.GetParameters()}
	if d.Topology != nil {
		v.AccessibleTopology = []*spec.Topology{{Segments: d.Topology}}
	}
	return &spec.CreateVolumeResponse{Volume: v}, nil
}

// DeleteVolume implements the controller service.
func (d *Driver) DeleteVolume(_ context.Context, r *spec.DeleteVolumeRequest) (*spec.DeleteVolumeResponse, error) {
	dir, err := d.known(r.GetVolumeId())
	if status.Code(err) == codes.NotFound {
		return &spec.DeleteVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	_ = os.Remove(d.sizeFile(r.GetVolumeId())) // where it has one
	if err := os.RemoveAll(dir); err != nil {
		return nil, internal(err)
	}
	return &spec.DeleteVolumeResponse{}, nil
}

// ControllerPublishVolume implements the controller service: attached to a node is what the attachment says.
func (d *Driver) ControllerPublishVolume(_ context.Context,
	r *spec.ControllerPublishVolumeRequest,
) (*spec.ControllerPublishVolumeResponse, error) {
	if _, err := d.known(r.GetVolumeId()); err != nil {
		return nil, err
	}
	return &spec.ControllerPublishVolumeResponse{PublishContext: map[string]string{"attached-to": r.GetNodeId()}}, nil
}

// ControllerUnpublishVolume implements the controller service.
func (d *Driver) ControllerUnpublishVolume(context.Context,
	*spec.ControllerUnpublishVolumeRequest,
) (*spec.ControllerUnpublishVolumeResponse, error) {
	return &spec.ControllerUnpublishVolumeResponse{}, nil
}

// ControllerExpandVolume implements the controller service; the node has its part to do.
func (d *Driver) ControllerExpandVolume(_ context.Context,
	r *spec.ControllerExpandVolumeRequest,
) (*spec.ControllerExpandVolumeResponse, error) {
	if _, err := d.known(r.GetVolumeId()); err != nil {
		return nil, err
	}
	size := r.GetCapacityRange().GetRequiredBytes()
	if err := d.resize(r.GetVolumeId(), size); err != nil {
		return nil, err
	}
	return &spec.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, nil
}

// ValidateVolumeCapabilities implements the controller service: all are good.
func (d *Driver) ValidateVolumeCapabilities(_ context.Context,
	r *spec.ValidateVolumeCapabilitiesRequest,
) (*spec.ValidateVolumeCapabilitiesResponse, error) {
	if _, err := d.known(r.GetVolumeId()); err != nil {
		return nil, err
	}
	return &spec.ValidateVolumeCapabilitiesResponse{
		Confirmed: &spec.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: r.GetVolumeCapabilities()},
	}, nil
}
