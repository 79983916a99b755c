// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// resourceMetrics in the form that metrics-server reads.
func (s *Server) resourceMetrics(w http.ResponseWriter, r *http.Request) {
	var b strings.Builder
	family := func(name, help, kind string) { fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	failed := 0
	var ns []sample
	var cs, ps []sample
	var swapped, bounded, podSwapped strings.Builder
	var starts strings.Builder
	for _, n := range s.chosen(r) {
		list, err := n.Runtime().Stats(r.Context())
		if err != nil {
			failed = 1 // what other nodes say is told all the same
			continue
		}
		ns = append(ns, nodeSample(r.Context(), n, list))
		starts.WriteString(startLines(n.Pods()))
		for _, p := range list {
			m := p.GetAttributes().GetMetadata()
			who := fmt.Sprintf("namespace=%q,pod=%q", m.GetNamespace(), m.GetName())
			ps = append(ps, sample{
				line("pod_cpu_usage_seconds_total", who, p.GetLinux().GetCpu()),
				memLine("pod_memory_working_set_bytes", who, p.GetLinux().GetMemory()),
			})
			used := podStats(p)
			podSwapped.WriteString(swapLine("pod_swap_usage_bytes", who, used.Swap, false))
			for _, c := range used.Containers {
				cw := fmt.Sprintf("container=%q,", c.Name) + who
				swapped.WriteString(swapLine("container_swap_usage_bytes", cw, c.Swap, false))
				bounded.WriteString(swapLine("container_swap_limit_bytes", cw, c.Swap, true))
			}
			for _, c := range p.GetLinux().GetContainers() {
				cw := fmt.Sprintf("container=%q,", c.GetAttributes().GetMetadata().GetName()) + who
				cs = append(cs,
					sample{line("container_cpu_usage_seconds_total", cw, c.GetCpu()), memLine("container_memory_working_set_bytes", cw, c.GetMemory())})
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
		write(ns, "node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds",
			"counter", func(s sample) string { return s.cpu })
		write(ns, "node_memory_working_set_bytes", "Current working set of the node in bytes", "gauge", func(s sample) string { return s.memory })
	}
	family("container_start_time_seconds", "Start time of the container since unix epoch in seconds", "gauge")
	b.WriteString(starts.String())
	write(cs, "container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds",
		"counter", func(s sample) string { return s.cpu })
	write(cs, "container_memory_working_set_bytes", "Current working set of the container in bytes",
		"gauge", func(s sample) string { return s.memory })
	write(ps, "pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds",
		"counter", func(s sample) string { return s.cpu })
	write(ps, "pod_memory_working_set_bytes", "Current working set of the pod in bytes", "gauge", func(s sample) string { return s.memory })
	for _, f := range []struct {
		name, help string
		lines      *strings.Builder
	}{
		{"container_swap_limit_bytes", "Current amount of the container swap limit in bytes. Reported only on non-windows systems", &bounded},
		{"container_swap_usage_bytes", "Current amount of the container swap usage in bytes. Reported only on non-windows systems", &swapped},
		{"pod_swap_usage_bytes", "Current amount of the pod swap usage in bytes. Reported only on non-windows systems", &podSwapped},
	} {
		family(f.name, f.help, "gauge")
		b.WriteString(f.lines.String())
	}
	if nodes := s.chosen(r); len(nodes) == 1 {
		if u := nodeSwap(nodes[0]); u != nil {
			family("node_swap_usage_bytes", "Current swap usage of the node in bytes. Reported only on non-windows systems", "gauge")
			fmt.Fprintf(&b, "node_swap_usage_bytes %d %d\n", *u.SwapUsageBytes, u.Time.UnixMilli())
		}
	}
	family("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", "gauge")
	fmt.Fprintf(&b, "resource_scrape_error %d\n", failed)
	text(w, b.String())
}

// sample is what one node, pod or container uses, as lines of the page.
type sample struct{ cpu, memory string }

// nodeSample is what the node's machine uses, as in the summary.
func nodeSample(ctx context.Context, n Node, list []*cri.PodSandboxStats) sample {
	u := nodeUsage(ctx, n, list)
	return sample{
		fmt.Sprintf("node_cpu_usage_seconds_total %g %d\n", float64(u.cpu)/1e9, u.at.UnixMilli()),
		fmt.Sprintf("node_memory_working_set_bytes %d %d\n", u.memory.GetWorkingSetBytes().GetValue(), u.at.UnixMilli()),
	}
}

// startLines say when containers that run were started.
func startLines(pods []*corev1.Pod) string {
	var b strings.Builder
	for _, p := range pods {
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running != nil && !c.State.Running.StartedAt.IsZero() {
				fmt.Fprintf(&b, "container_start_time_seconds{container=%q,namespace=%q,pod=%q} %g\n", c.Name, p.Namespace, p.Name,
					float64(c.State.Running.StartedAt.UnixNano())/1e9)
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

// swapLine is what is used, or with limit what may be.
func swapLine(name, labels string, u *stats.SwapStats, limit bool) string {
	if u == nil || u.SwapUsageBytes == nil || limit && u.SwapAvailableBytes == nil {
		return ""
	}
	value := *u.SwapUsageBytes
	if limit {
		value += *u.SwapAvailableBytes
	}
	return fmt.Sprintf("%s{%s} %d %d\n", name, labels, value, u.Time.UnixMilli())
}
