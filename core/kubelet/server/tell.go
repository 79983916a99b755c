// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		return // the reader went away
	}
}

func (s *Server) all() []Node {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]Node, 0, len(s.nodes))
	for _, n := range s.nodes {
		out = append(out, n)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].NodeName() < out[j].NodeName() })
	return out
}

func (s *Server) chosen(r *http.Request) []Node {
	if r.URL.Query().Get("node") == "" {
		return s.all()
	}
	if n := s.about(r); n != nil {
		return []Node{n}
	}
	return nil
}

func (s *Server) podList(r *http.Request, keep func(*corev1.Pod) bool) *corev1.PodList {
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{}}
	for _, n := range s.chosen(r) {
		for _, p := range n.Pods() {
			if keep(p) {
				list.Items = append(list.Items, *p)
			}
		}
	}
	return list
}

func (s *Server) pods(w http.ResponseWriter, r *http.Request) {
	reply(w, s.podList(r, func(*corev1.Pod) bool { return true }))
}

func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) {
	reply(w, s.podList(r, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }))
}

func (s *Server) configz(w http.ResponseWriter, r *http.Request) {
	n := s.about(r)
	if n == nil {
		http.NotFound(w, r)
		return
	}
	reply(w, map[string]any{"kubeletconfig": n.Config()})
}

func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	for _, n := range s.chosen(r) {
		if err := n.Runtime().Ready(r.Context()); err != nil {
			http.Error(w, fmt.Sprintf("node %s: container runtime is not ready: %v", n.NodeName(), err), http.StatusInternalServerError)
			return
		}
	}
	_, _ = w.Write([]byte("ok"))
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
	out := stats.Summary{Node: stats.NodeStats{NodeName: n.NodeName()}, Pods: []stats.PodStats{}}
	var cpu, nano, mem uint64
	for _, ps := range list {
		p := podStats(ps)
		out.Pods = append(out.Pods, p)
		if p.CPU != nil && p.CPU.UsageCoreNanoSeconds != nil {
			cpu += *p.CPU.UsageCoreNanoSeconds
		}
		if p.CPU != nil && p.CPU.UsageNanoCores != nil {
			nano += *p.CPU.UsageNanoCores
		}
		if p.Memory != nil && p.Memory.WorkingSetBytes != nil {
			mem += *p.Memory.WorkingSetBytes
		}
	}
	now := metav1.NewTime(time.Now())
	out.Node.CPU = &stats.CPUStats{Time: now, UsageCoreNanoSeconds: &cpu, UsageNanoCores: &nano}
	out.Node.Memory = &stats.MemoryStats{Time: now, WorkingSetBytes: &mem}
	reply(w, out)
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
	for _, c := range ps.GetLinux().GetContainers() {
		out.Containers = append(out.Containers, stats.ContainerStats{Name: c.GetAttributes().GetMetadata().GetName(), CPU: cpuStats(c.GetCpu()), Memory: memoryStats(c.GetMemory())})
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

// resourceMetrics in the form that metrics-server reads.
func (s *Server) resourceMetrics(w http.ResponseWriter, r *http.Request) {
	var b strings.Builder
	family := func(name, help, kind string) { fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	failed := 0
	var ns []sample
	var cs, ps []sample
	var starts strings.Builder
	for _, n := range s.chosen(r) {
		list, err := n.Runtime().Stats(r.Context())
		if err != nil {
			failed = 1 // what other nodes say is told all the same
			continue
		}
		ns = append(ns, nodeSample(list))
		starts.WriteString(startLines(n.Pods()))
		for _, p := range list {
			m := p.GetAttributes().GetMetadata()
			who := fmt.Sprintf("namespace=%q,pod=%q", m.GetNamespace(), m.GetName())
			ps = append(ps, sample{line("pod_cpu_usage_seconds_total", who, p.GetLinux().GetCpu()), memLine("pod_memory_working_set_bytes", who, p.GetLinux().GetMemory())})
			for _, c := range p.GetLinux().GetContainers() {
				cw := fmt.Sprintf("container=%q,", c.GetAttributes().GetMetadata().GetName()) + who
				cs = append(cs, sample{line("container_cpu_usage_seconds_total", cw, c.GetCpu()), memLine("container_memory_working_set_bytes", cw, c.GetMemory())})
			}
		}
	}
	write := func(list []sample, name, help, kind string, pick func(sample) string) {
		family(name, help, kind)
		for _, s := range list {
			b.WriteString(pick(s))
		}
	}
	if len(ns) == 1 { // upstream's name has no label that would tell several nodes apart: ask with ?node=
		write(ns, "node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds", "counter", func(s sample) string { return s.cpu })
		write(ns, "node_memory_working_set_bytes", "Current working set of the node in bytes", "gauge", func(s sample) string { return s.memory })
	}
	family("container_start_time_seconds", "Start time of the container since unix epoch in seconds", "gauge")
	b.WriteString(starts.String())
	write(cs, "container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", "counter", func(s sample) string { return s.cpu })
	write(cs, "container_memory_working_set_bytes", "Current working set of the container in bytes", "gauge", func(s sample) string { return s.memory })
	write(ps, "pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", "counter", func(s sample) string { return s.cpu })
	write(ps, "pod_memory_working_set_bytes", "Current working set of the pod in bytes", "gauge", func(s sample) string { return s.memory })
	family("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", "gauge")
	fmt.Fprintf(&b, "resource_scrape_error %d\n", failed)
	text(w, b.String())
}

// sample is what one node, pod or container uses, as lines of the page.
type sample struct{ cpu, memory string }

// nodeSample is what the node's pods use together, as in the summary.
func nodeSample(list []*cri.PodSandboxStats) sample {
	var cpu, memory uint64
	var at int64
	for _, p := range list {
		l := p.GetLinux()
		cpu += l.GetCpu().GetUsageCoreNanoSeconds().GetValue()
		memory += l.GetMemory().GetWorkingSetBytes().GetValue()
		at = max(at, l.GetCpu().GetTimestamp(), l.GetMemory().GetTimestamp())
	}
	if at == 0 { // no pod has been measured: now is when nothing is used
		at = time.Now().UnixNano()
	}
	return sample{
		fmt.Sprintf("node_cpu_usage_seconds_total %g %d\n", float64(cpu)/1e9, at/1e6),
		fmt.Sprintf("node_memory_working_set_bytes %d %d\n", memory, at/1e6),
	}
}

// startLines say when containers that run were started.
func startLines(pods []*corev1.Pod) string {
	var b strings.Builder
	for _, p := range pods {
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running != nil && !c.State.Running.StartedAt.IsZero() {
				fmt.Fprintf(&b, "container_start_time_seconds{container=%q,namespace=%q,pod=%q} %d\n", c.Name, p.Namespace, p.Name, c.State.Running.StartedAt.Unix())
			}
		}
	}
	return b.String()
}

func line(name, labels string, c *cri.CpuUsage) string {
	if c.GetUsageCoreNanoSeconds() == nil {
		return ""
	}
	return fmt.Sprintf("%s{%s} %g %d\n", name, labels, float64(c.UsageCoreNanoSeconds.Value)/1e9, c.Timestamp/1e6)
}

func memLine(name, labels string, m *cri.MemoryUsage) string {
	if m.GetWorkingSetBytes() == nil {
		return ""
	}
	return fmt.Sprintf("%s{%s} %d %d\n", name, labels, m.WorkingSetBytes.Value, m.Timestamp/1e6)
}

func text(w http.ResponseWriter, s string) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(s))
}

// metrics of the kubelets themselves.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	var b strings.Builder
	b.WriteString("# HELP kubelet_running_pods Number of pods that have a running pod sandbox\n# TYPE kubelet_running_pods gauge\n")
	var containers strings.Builder
	for _, n := range s.chosen(r) {
		pods := 0
		byState := map[string]int{"created": 0, "running": 0, "exited": 0}
		for _, p := range n.Pods() {
			if p.Status.Phase == corev1.PodRunning {
				pods++
			}
			for _, st := range p.Status.ContainerStatuses {
				switch {
				case st.State.Running != nil:
					byState["running"]++
				case st.State.Terminated != nil:
					byState["exited"]++
				default:
					byState["created"]++
				}
			}
		}
		fmt.Fprintf(&b, "kubelet_running_pods{node=%q} %d\n", n.NodeName(), pods)
		for _, st := range []string{"created", "exited", "running"} {
			fmt.Fprintf(&containers, "kubelet_running_containers{container_state=%q,node=%q} %d\n", st, n.NodeName(), byState[st])
		}
	}
	b.WriteString("# HELP kubelet_running_containers Number of containers by state\n# TYPE kubelet_running_containers gauge\n" + containers.String())
	text(w, b.String())
}
