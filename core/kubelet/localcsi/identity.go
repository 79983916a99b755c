// SPDX-License-Identifier: Apache-2.0

package localcsi

import (
	"context"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
)

// GetPluginInfo implements the identity service.
func (d *Driver) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{Name: d.cfg.Name, VendorVersion: d.cfg.Version}, nil
}

// GetPluginCapabilities implements the identity service.
func (*Driver) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	service := func(t spec.PluginCapability_Service_Type) *spec.PluginCapability {
		return &spec.PluginCapability{Type: &spec.PluginCapability_Service_{Service: &spec.PluginCapability_Service{Type: t}}}
	}
	return &spec.GetPluginCapabilitiesResponse{Capabilities: []*spec.PluginCapability{
		service(spec.PluginCapability_Service_CONTROLLER_SERVICE),
		service(spec.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
		{Type: &spec.PluginCapability_VolumeExpansion_{
			VolumeExpansion: &spec.PluginCapability_VolumeExpansion{Type: spec.PluginCapability_VolumeExpansion_ONLINE},
		}},
	}}, nil
}

// Probe implements the identity service.
func (*Driver) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{}, nil
}

// ControllerGetCapabilities implements the controller service.
func (*Driver) ControllerGetCapabilities(context.Context,
	*spec.ControllerGetCapabilitiesRequest,
) (*spec.ControllerGetCapabilitiesResponse, error) {
	out := &spec.ControllerGetCapabilitiesResponse{}
	for _, t := range []spec.ControllerServiceCapability_RPC_Type{
		spec.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, spec.ControllerServiceCapability_RPC_LIST_VOLUMES,
		spec.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, spec.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		spec.ControllerServiceCapability_RPC_CLONE_VOLUME, spec.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		spec.ControllerServiceCapability_RPC_GET_CAPACITY, spec.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities,
			&spec.ControllerServiceCapability{Type: &spec.ControllerServiceCapability_Rpc{Rpc: &spec.ControllerServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

// NodeGetCapabilities implements the node service.
func (*Driver) NodeGetCapabilities(context.Context, *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	out := &spec.NodeGetCapabilitiesResponse{}
	for _, t := range []spec.NodeServiceCapability_RPC_Type{
		spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, spec.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		spec.NodeServiceCapability_RPC_EXPAND_VOLUME, spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities,
			&spec.NodeServiceCapability{Type: &spec.NodeServiceCapability_Rpc{Rpc: &spec.NodeServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

func (d *Driver) topology() *spec.Topology {
	return &spec.Topology{Segments: map[string]string{d.cfg.TopologyKey: d.cfg.Node}}
}

// NodeGetInfo implements the node service.
func (d *Driver) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	return &spec.NodeGetInfoResponse{NodeId: d.cfg.Node, AccessibleTopology: d.topology()}, nil
}
