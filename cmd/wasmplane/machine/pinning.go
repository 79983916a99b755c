// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/kubelet/allot"
	"github.com/wasmplane/wasmplane/core/kubelet/deviceplugin"
	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/pinning"
	"github.com/wasmplane/wasmplane/core/kubelet/reservation"
)

// reserved is what the machine keeps for itself.
type reserved struct {
	cpus   cpuset.CPUSet
	memory map[int]map[string]int64
	numa   corev1.ResourceList // the sums of memory
}

func reservedBy(c *config.Configuration) (*reserved, error) {
	r := &reserved{memory: map[int]map[string]int64{}, numa: corev1.ResourceList{}}
	var err error
	if r.cpus, err = cpuset.Parse(c.Node.ReservedSystemCPUs); err != nil {
		return nil, fmt.Errorf("node.reservedSystemCPUs: expected CPUs such as 0-1,4, found %q", c.Node.ReservedSystemCPUs)
	}
	for i, one := range c.Node.ReservedMemory {
		for kind, amount := range one.Limits {
			q, err := resource.ParseQuantity(amount)
			if err != nil {
				return nil, fmt.Errorf("node.reservedMemory[%d].limits.%s: expected an amount such as 1Gi, found %q", i, kind, amount)
			}
			if r.memory[one.NUMANode] == nil {
				r.memory[one.NUMANode] = map[string]int64{}
			}
			r.memory[one.NUMANode][kind] += q.Value()
			sum := r.numa[corev1.ResourceName(kind)]
			sum.Add(q)
			r.numa[corev1.ResourceName(kind)] = sum
		}
	}
	return r, nil
}

// pinning gives CPUs and memory together with devices.
func (n *Node) pinning(devices *deviceplugin.Manager, eng engine.Engine, r *reserved) (*pinning.Manager, error) {
	c := n.component.Options.Config.Node
	on := c.CPUManagerPolicyOptions
	there := &allot.Machine{}
	if c.CPUManagerPolicy == "static" || c.MemoryManagerPolicy == "Static" || c.TopologyManagerPolicy != "none" || !r.cpus.IsEmpty() {
		var err error
		if there, err = allot.Read("/sys"); err != nil {
			return nil, err
		}
	}
	return pinning.New(pinning.Config{
		Devices: devices, Engine: eng, Machine: there, RootDir: kubeletRoot(n.component.Options),
		CPUs: c.CPUManagerPolicy == "static", Memory: c.MemoryManagerPolicy == "Static",
		Options: allot.Options{
			FullCores: on["full-pcpus-only"], Distribute: on["distribute-cpus-across-numa"], AlignCaches: on["prefer-align-cpus-by-uncorecache"],
		},
		Reserved: r.cpus, Shared: !on["strict-cpu-reservation"], ReservedMemory: r.memory,
		Policy: allot.Policy(c.TopologyManagerPolicy), PodScope: c.TopologyManagerScope == "pod", Logger: n.component.Options.Logger,
	})
}

// settings of what pods do not get.
func (r *reserved) settings(c *config.Configuration) reservation.Settings {
	s := c.Node.Reserve()
	s.CPUs, s.NUMA = int64(r.cpus.Size()), r.numa
	return s
}
