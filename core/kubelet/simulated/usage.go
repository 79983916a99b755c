// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Stats answers that containers have used since they started what their pods'
// annotations say, and pods what their containers have together.
func (e *Engine) Stats(context.Context) ([]*cri.PodSandboxStats, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	byPod := map[*sandbox]*cri.PodSandboxStats{}
	for _, sb := range e.sandboxes {
		if st := sb.status; st.State == cri.PodSandboxState_SANDBOX_READY {
			cpu, memory := used(now, 0, 0, 0)
			byPod[sb] = &cri.PodSandboxStats{
				Attributes: &cri.PodSandboxAttributes{Id: st.Id, Metadata: st.Metadata, Labels: st.Labels, Annotations: st.Annotations},
				Linux:      &cri.LinuxPodSandboxStats{Cpu: cpu, Memory: memory},
			}
		}
	}
	for _, c := range e.containers {
		p := byPod[c.sandbox]
		if p == nil || c.status.State != cri.ContainerState_CONTAINER_RUNNING {
			continue
		}
		cpu, memory := usage(c, now)
		p.Linux.Containers = append(p.Linux.Containers, &cri.ContainerStats{
			Attributes: &cri.ContainerAttributes{Id: c.status.Id, Metadata: c.status.Metadata, Labels: c.status.Labels}, Cpu: cpu, Memory: memory,
		})
		p.Linux.Cpu.UsageCoreNanoSeconds.Value += cpu.UsageCoreNanoSeconds.Value
		p.Linux.Cpu.UsageNanoCores.Value += cpu.UsageNanoCores.Value
		p.Linux.Memory.WorkingSetBytes.Value += memory.WorkingSetBytes.Value
		p.Linux.Memory.UsageBytes.Value += memory.UsageBytes.Value
	}
	return slices.Collect(maps.Values(byPod)), nil
}

func usage(c *container, now time.Time) (*cri.CpuUsage, *cri.MemoryUsage) {
	name, a := c.status.GetMetadata().GetName(), c.sandbox.status.GetAnnotations()
	if len(a) == 0 {
		return used(now, 0, 0, 0)
	}
	return used(now, now.Sub(time.Unix(0, c.status.StartedAt)), quantity(directive(a, "cpu", name)), quantity(directive(a, "memory", name)))
}

// used are statistics of who has run that long, with that much of a processor.
func used(now time.Time, ran time.Duration, cpu, memory float64) (*cri.CpuUsage, *cri.MemoryUsage) {
	value := func(v float64) *cri.UInt64Value { return &cri.UInt64Value{Value: uint64(v)} }
	return &cri.CpuUsage{Timestamp: now.UnixNano(), UsageCoreNanoSeconds: value(max(cpu*float64(ran), 0)), UsageNanoCores: value(cpu * 1e9)},
		&cri.MemoryUsage{Timestamp: now.UnixNano(), WorkingSetBytes: value(memory), UsageBytes: value(memory)}
}

// quantity is zero for what is none, and for what no machine has.
func quantity(v string) float64 {
	q, err := resource.ParseQuantity(v)
	if f := q.AsApproximateFloat64(); err == nil && f > 0 && f < 1<<53 {
		return f
	}
	return 0
}
