// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/allot"
)

// DevicesOf a container, as programs on the node are told.
func (m *Manager) DevicesOf(uid types.UID, container string) (out []*podresources.ContainerDevices) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.given {
		if e.Key.Pod != uid || e.Key.Container != container {
			continue
		}
		of := map[string]device{}
		if p := m.resources[e.Key.Resource]; p != nil {
			of = p.devices
		}
		out = append(out, byNodes(e.Key.Resource, e.Grant.IDs, of)...)
	}
	return out
}

// AllDevices that are healthy, as programs on the node are told.
func (m *Manager) AllDevices() (out []*podresources.ContainerDevices) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.resources)) {
		devices := m.resources[name].devices
		var ids []string
		for _, id := range slices.Sorted(maps.Keys(devices)) {
			if devices[id].healthy {
				ids = append(ids, id)
			}
		}
		out = append(out, byNodes(name, ids, devices)...)
	}
	return out
}

// byNodes has the devices of the same NUMA nodes together.
func byNodes(resource string, ids []string, of map[string]device) (out []*podresources.ContainerDevices) {
	at := map[allot.Nodes]*podresources.ContainerDevices{}
	for _, id := range ids {
		nodes := of[id].nodes
		if at[nodes] == nil {
			at[nodes] = &podresources.ContainerDevices{ResourceName: resource, Topology: nodes.Topology()}
			out = append(out, at[nodes])
		}
		at[nodes].DeviceIds = append(at[nodes].DeviceIds, id)
	}
	return out
}
