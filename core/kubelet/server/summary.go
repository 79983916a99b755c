// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/kubelet/volume"
)

// Machine is an optional power of a Node: what the whole machine has used of its
// processors since it started, in nanoseconds, and of its memory. Of a node without
// it, its pods are all that is known.
type Machine interface {
	Usage(ctx context.Context) (cpu uint64, memory *cri.MemoryUsage, ok bool)
}

// usage of a node up to a moment.
type usage struct {
	cpu    uint64
	memory *cri.MemoryUsage
	nano   uint64 // cores, now; 0 where it is not known
	at     time.Time
}

func nodeUsage(ctx context.Context, n Node, list []*cri.PodSandboxStats) usage {
	if m, ok := n.(Machine); ok {
		if cpu, memory, ok := m.Usage(ctx); ok {
			return usage{cpu: cpu, memory: memory, at: time.Now()}
		}
	}
	var u usage
	var at int64
	var used, working, rss uint64
	for _, p := range list {
		l := p.GetLinux()
		u.cpu += l.GetCpu().GetUsageCoreNanoSeconds().GetValue()
		u.nano += l.GetCpu().GetUsageNanoCores().GetValue()
		used += l.GetMemory().GetUsageBytes().GetValue()
		working += l.GetMemory().GetWorkingSetBytes().GetValue()
		rss += l.GetMemory().GetRssBytes().GetValue()
		at = max(at, l.GetCpu().GetTimestamp(), l.GetMemory().GetTimestamp())
	}
	u.at = time.Unix(0, at)
	if at == 0 { // no pod has been measured: now is when nothing is used
		u.at = time.Now()
	}
	u.memory = &cri.MemoryUsage{
		UsageBytes: &cri.UInt64Value{Value: used}, WorkingSetBytes: &cri.UInt64Value{Value: working}, RssBytes: &cri.UInt64Value{Value: rss},
	}
	return u
}

// rate is what a node uses since somebody asked before; the first who asks learns 0.
func (s *Server) rate(node string, u usage) uint64 {
	if u.nano > 0 {
		return u.nano
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before, ok := s.before[node]
	s.before[node] = u
	passed := u.at.Sub(before.at)
	if !ok || passed < time.Millisecond || u.cpu < before.cpu {
		return 0
	}
	return uint64(float64(u.cpu-before.cpu) / passed.Seconds())
}

// summary of what pods use.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	n := s.about(r)
	if n == nil {
		http.NotFound(w, r)
		return
	}
	list, err := n.Runtime().Stats(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	u := nodeUsage(r.Context(), n, list)
	nano, at := s.rate(n.NodeName(), u), metav1.NewTime(u.at)
	out := stats.Summary{Node: stats.NodeStats{NodeName: n.NodeName()}, Pods: []stats.PodStats{}}
	out.Node.CPU = &stats.CPUStats{Time: at, UsageCoreNanoSeconds: &u.cpu, UsageNanoCores: &nano}
	out.Node.Memory = memoryStats(u.memory)
	out.Node.Memory.Time = at
	out.Node.Swap = nodeSwap(n)
	known := map[types.UID]*corev1.Pod{}
	for _, p := range n.Pods() {
		known[p.UID] = p
	}
	d := diskOf(r.Context(), n)
	if d != nil {
		out.Node.Fs, out.Node.Runtime = d.whole(), &stats.RuntimeStats{ImageFs: d.whole()}
	}
	for _, ps := range list {
		p := podStats(ps)
		if d != nil {
			d.describe(&p, ps)
		}
		begin(&p, known[types.UID(p.PodRef.UID)])
		out.Pods = append(out.Pods, p)
	}
	if v, ok := n.(VolumeMeter); ok {
		ctx := r.Context()
		var wg sync.WaitGroup // of slow drivers, the slowest counts
		for i := range out.Pods {
			wg.Go(func() { measureVolumes(ctx, v, &out.Pods[i]) })
		}
		wg.Wait()
	}
	reply(w, out)
}

// VolumeMeter is an optional power of a Node: how full the volumes of a pod are.
type VolumeMeter interface {
	VolumeUsage(ctx context.Context, uid types.UID) []volume.Measured
}

func measureVolumes(ctx context.Context, n VolumeMeter, p *stats.PodStats) {
	now := time.Now()
	for _, m := range n.VolumeUsage(ctx, types.UID(p.PodRef.UID)) {
		v := stats.VolumeStats{Name: m.Name, FsStats: *fsStats(now, m.FileSystem)}
		if m.Claim != "" {
			v.PVCRef = &stats.PVCReference{Name: m.Claim, Namespace: p.PodRef.Namespace}
		}
		p.VolumeStats = append(p.VolumeStats, v)
	}
}

// begin fills in when a pod and its containers started.
func begin(s *stats.PodStats, p *corev1.Pod) {
	if p == nil {
		return
	}
	if p.Status.StartTime != nil {
		s.StartTime = *p.Status.StartTime
	}
	for i := range s.Containers {
		for _, c := range p.Status.ContainerStatuses {
			if c.Name == s.Containers[i].Name && c.State.Running != nil {
				s.Containers[i].StartTime = c.State.Running.StartedAt
			}
		}
	}
}

func podStats(ps *cri.PodSandboxStats) stats.PodStats {
	m := ps.GetAttributes().GetMetadata()
	out := stats.PodStats{
		PodRef: stats.PodReference{Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUid()},
		CPU:    cpuStats(ps.GetLinux().GetCpu()), Memory: memoryStats(ps.GetLinux().GetMemory()), Containers: []stats.ContainerStats{},
	}
	if net := ps.GetLinux().GetNetwork().GetDefaultInterface(); net != nil {
		rx, tx := net.GetRxBytes().GetValue(), net.GetTxBytes().GetValue()
		out.Network = &stats.NetworkStats{
			Time:           metav1.Unix(0, ps.GetLinux().GetNetwork().GetTimestamp()),
			InterfaceStats: stats.InterfaceStats{Name: net.Name, RxBytes: &rx, TxBytes: &tx},
		}
	}
	if n := ps.GetLinux().GetProcess().GetProcessCount(); n != nil {
		out.ProcessStats = &stats.ProcessStats{ProcessCount: &n.Value}
	}
	for _, c := range ps.GetLinux().GetContainers() {
		out.Containers = append(out.Containers, stats.ContainerStats{
			Name: c.GetAttributes().GetMetadata().GetName(), CPU: cpuStats(c.GetCpu()),
			Memory: memoryStats(c.GetMemory()), Swap: swapStats(c.GetSwap()),
		})
	}
	out.Swap = podSwap(out.Containers)
	return out
}

// swapStats of a container; nil where the runtime does not say.
func swapStats(u *cri.SwapUsage) *stats.SwapStats {
	if u == nil {
		return nil
	}
	out := &stats.SwapStats{Time: metav1.Unix(0, u.Timestamp)}
	if v := u.SwapUsageBytes; v != nil {
		out.SwapUsageBytes = &v.Value
	}
	if v := u.SwapAvailableBytes; v != nil {
		out.SwapAvailableBytes = &v.Value
	}
	return out
}

// nodeSwap is that of a node's machine; nil where it is not known.
func nodeSwap(n Node) *stats.SwapStats {
	c, ok := n.(Counted)
	if !ok {
		return nil
	}
	reader := c.Counters()
	if reader == nil {
		return nil
	}
	used, free := reader.Look().MachineSwap()
	return &stats.SwapStats{Time: metav1.Now(), SwapUsageBytes: &used, SwapAvailableBytes: &free}
}

// podSwap is that of a pod's containers together; nil where it is known of none.
func podSwap(all []stats.ContainerStats) *stats.SwapStats {
	var out *stats.SwapStats
	for _, c := range all {
		if c.Swap == nil {
			continue
		}
		if out == nil {
			out = &stats.SwapStats{SwapUsageBytes: new(uint64), SwapAvailableBytes: new(uint64)}
		}
		out.Time = c.Swap.Time
		*out.SwapUsageBytes += ptr.Deref(c.Swap.SwapUsageBytes, 0)
		*out.SwapAvailableBytes += ptr.Deref(c.Swap.SwapAvailableBytes, 0)
	}
	return out
}

func cpuStats(c *cri.CpuUsage) *stats.CPUStats {
	if c == nil {
		return nil
	}
	out := &stats.CPUStats{Time: metav1.Unix(0, c.Timestamp)}
	if v := c.UsageCoreNanoSeconds; v != nil {
		out.UsageCoreNanoSeconds = &v.Value
	}
	if v := c.UsageNanoCores; v != nil {
		out.UsageNanoCores = &v.Value
	}
	return out
}

func memoryStats(m *cri.MemoryUsage) *stats.MemoryStats {
	if m == nil {
		return nil
	}
	out := &stats.MemoryStats{Time: metav1.Unix(0, m.Timestamp)}
	for _, f := range []struct {
		from *cri.UInt64Value
		to   **uint64
	}{
		{m.AvailableBytes, &out.AvailableBytes},
		{m.UsageBytes, &out.UsageBytes},
		{m.WorkingSetBytes, &out.WorkingSetBytes},
		{m.RssBytes, &out.RSSBytes},
		{m.PageFaults, &out.PageFaults},
		{m.MajorPageFaults, &out.MajorPageFaults},
	} {
		if f.from != nil {
			*f.to = &f.from.Value
		}
	}
	return out
}
