// SPDX-License-Identifier: Apache-2.0

package pinning

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"

	"github.com/wasmplane/wasmplane/core/kubelet/allot"
)

// PinsOf a container, as programs on the node are told.
func (m *Manager) PinsOf(uid types.UID, container string) (cpus []int64, memory []*podresources.ContainerMemory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.of(uid, container)
	if g == nil {
		return nil, nil
	}
	for _, b := range g.Memory {
		memory = append(memory, &podresources.ContainerMemory{MemoryType: b.Kind, Size: uint64(max(b.Bytes, 0)), Topology: b.Nodes.Topology()})
	}
	return ids(g.cpus()), memory
}

// AllPins are what containers may have, as programs on the node are told.
func (m *Manager) AllPins() (cpus []int64, memory []*podresources.ContainerMemory) {
	if m.cfg.CPUs {
		cpus = ids(m.assignable())
	}
	if !m.cfg.Memory {
		return cpus, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.ledger("")
	for _, id := range slices.Sorted(maps.Keys(l.Allocatable)) {
		for _, kind := range slices.Sorted(maps.Keys(l.Allocatable[id])) {
			size := uint64(max(l.Allocatable[id][kind], 0))
			memory = append(memory, &podresources.ContainerMemory{MemoryType: kind, Size: size, Topology: allot.NodesOf(id).Topology()})
		}
	}
	return cpus, memory
}

func ids(set cpuset.CPUSet) (out []int64) {
	for _, id := range set.List() {
		out = append(out, int64(id))
	}
	return out
}
