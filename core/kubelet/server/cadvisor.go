// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"net/http"
	"runtime"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/cadvisor"
	"github.com/wasmplane/wasmplane/core/kubelet/counters"
	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// Counted is an optional power of a Node: what the kernel counts of its machine and of its pods' cgroups; nil where it is not
// asked. Of a node without it, the page has what the runtime tells.
type Counted interface{ Counters() *counters.Reader }

// cadvisorMetrics are what pods use, under cAdvisor's names. One is answered at a time: each reads some dozen files for every container.
func (s *Server) cadvisorMetrics(w http.ResponseWriter, r *http.Request) {
	page, ok := s.cadvisorPage(r)
	if !ok {
		return // who asked has gone
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(page)
}

func (s *Server) cadvisorPage(r *http.Request) ([]byte, bool) {
	select {
	case s.counting <- struct{}{}:
		defer func() { <-s.counting }()
	case <-r.Context().Done():
		return nil, false
	}
	page := cadvisor.Page{At: time.Now()}
	nodes := s.chosen(r)
	for _, n := range nodes {
		list, err := n.Runtime().Stats(r.Context())
		if err != nil {
			page.Failed = true // what other nodes say is told all the same
			continue
		}
		c := counting{server: s, node: n, pods: map[types.UID]*corev1.Pod{}}
		c.begin(r.Context())
		if len(nodes) == 1 { // the names have no label that would tell several nodes apart: ask with ?node=
			c.whole(r.Context(), &page, list)
		}
		for _, p := range list {
			c.pod(p)
		}
		page.Subjects = append(page.Subjects, c.subjects...)
	}
	var b bytes.Buffer
	err := page.Write(&b)
	return b.Bytes(), err == nil && r.Context().Err() == nil
}

// counting is one look at a node.
type counting struct {
	server   *Server
	node     Node
	look     *counters.Look // nil: the runtime alone is asked
	disk     *disk
	pods     map[types.UID]*corev1.Pod
	subjects []cadvisor.Subject
}

func (c *counting) begin(ctx context.Context) {
	for _, p := range c.node.Pods() {
		c.pods[p.UID] = p
	}
	if n, ok := c.node.(Counted); ok {
		if reader := n.Counters(); reader != nil {
			c.look, c.disk = reader.Look(), diskOf(ctx, c.node)
		}
	}
}

// whole is the machine, and the cgroup that all pods are in.
func (c *counting) whole(ctx context.Context, page *cadvisor.Page, list []*cri.PodSandboxStats) {
	if c.look == nil {
		return
	}
	memory, swap := c.look.MachineMemory()
	page.Machine = &cadvisor.Machine{Machine: c.look.Machine(), Cores: runtime.NumCPU(), Memory: memory, Swap: swap}
	u := nodeUsage(ctx, c.node, list)
	root := cadvisor.Subject{
		ID: "/", Told: told(u.cpu, u.memory), Network: c.look.MachineNetwork(), Group: counters.Group{Disks: c.look.MachineDisks()},
	}
	if c.disk != nil {
		root.Files = c.files(c.disk.fs.BytesUsed)
	}
	c.subjects = append(c.subjects, root)
	if g, ok := c.look.Group(c.look.Pods()); ok {
		c.subjects = append(c.subjects, cadvisor.Subject{ID: c.look.Pods(), Group: g})
	}
}

// files is the disk, of which somebody takes something.
func (c *counting) files(used uint64) []cadvisor.FileSystem {
	if c.disk == nil {
		return nil
	}
	fs := c.disk.fs
	return []cadvisor.FileSystem{{Device: c.look.Device(), Used: used, Size: fs.Bytes, Inodes: fs.Inodes, InodesFree: fs.InodesFree}}
}

// told is what the runtime has measured.
func told(cpu uint64, m *cri.MemoryUsage) cadvisor.Usage {
	number := func(v *cri.UInt64Value) *float64 {
		if v == nil {
			return nil
		}
		f := float64(v.Value)
		return &f
	}
	seconds := float64(cpu) / 1e9
	return cadvisor.Usage{
		CPU: &seconds, Memory: number(m.GetUsageBytes()), WorkingSet: number(m.GetWorkingSetBytes()), RSS: number(m.GetRssBytes()),
	}
}

// pod adds a pod, its sandbox and its containers.
func (c *counting) pod(stats *cri.PodSandboxStats) {
	m := stats.GetAttributes().GetMetadata()
	p := c.pods[types.UID(m.GetUid())]
	whole := cadvisor.Subject{
		Pod: m.GetName(), Namespace: m.GetNamespace(),
		Told: told(stats.GetLinux().GetCpu().GetUsageCoreNanoSeconds().GetValue(), stats.GetLinux().GetMemory()),
	}
	if p != nil && p.Status.StartTime != nil {
		whole.Started = p.Status.StartTime.Time
	}
	if c.look != nil {
		whole.ID = c.look.Pod(m.GetUid())
	}
	sandbox := whole
	sandbox.Name, sandbox.Told = stats.GetAttributes().GetId(), cadvisor.Usage{}
	if whole.ID != "" {
		whole.Group, _ = c.look.Group(whole.ID)
		sandbox.ID = whole.ID + "/" + sandbox.Name
		sandbox.Group, _ = c.look.Group(sandbox.ID)
	}
	sandbox.Image = c.server.cfg.SandboxImage
	sandbox.Network = c.network(p, stats, sandbox.ID)
	c.subjects = append(c.subjects, whole)
	if sandbox.ID != "" || len(sandbox.Network) > 0 { // of a simulated one nothing is counted
		c.subjects = append(c.subjects, sandbox)
	}
	for _, container := range stats.GetLinux().GetContainers() {
		c.container(p, &whole, container)
	}
}

// network of a pod that has one of its own. Where no process of the sandbox lives in it, the runtime says what it knows.
func (c *counting) network(p *corev1.Pod, stats *cri.PodSandboxStats, group string) (out []counters.Interface) {
	if p == nil || p.Spec.HostNetwork {
		return nil
	}
	if group != "" {
		if out = c.look.Network(group); out != nil {
			return out
		}
	}
	net := stats.GetLinux().GetNetwork()
	all := net.GetInterfaces()
	if d := net.GetDefaultInterface(); d != nil {
		all = append([]*cri.NetworkInterfaceUsage{d}, all...)
	}
	for _, i := range all {
		out = append(out, counters.Interface{
			Name: i.Name, ReceivedBytes: i.GetRxBytes().GetValue(), ReceiveErrors: i.GetRxErrors().GetValue(),
			SentBytes: i.GetTxBytes().GetValue(), SendErrors: i.GetTxErrors().GetValue(), NoPackets: true,
		})
	}
	return out
}

func (c *counting) container(p *corev1.Pod, whole *cadvisor.Subject, stats *cri.ContainerStats) {
	a := stats.GetAttributes()
	s := cadvisor.Subject{
		Container: a.GetMetadata().GetName(), Pod: whole.Pod, Namespace: whole.Namespace, Name: a.GetId(),
		Told: told(stats.GetCpu().GetUsageCoreNanoSeconds().GetValue(), stats.GetMemory()),
	}
	s.Image, s.Started = c.about(p, s.Container, s.Name)
	if whole.ID != "" {
		s.ID = whole.ID + "/" + s.Name
		s.Group, _ = c.look.Group(s.ID)
	}
	if layer := stats.GetWritableLayer(); layer != nil && c.look != nil {
		s.Files = c.files(uint64(diskusage.OfLayer(layer).Bytes)) //nolint:gosec // never negative
	}
	c.subjects = append(c.subjects, s)
}

// about is the image of a container, and when it was started. Until the pod's status speaks of it, the image is that of its spec.
func (c *counting) about(p *corev1.Pod, name, id string) (image string, started time.Time) {
	if p == nil {
		return "", started
	}
	st := &p.Status
	for _, list := range [][]corev1.ContainerStatus{st.ContainerStatuses, st.InitContainerStatuses, st.EphemeralContainerStatuses} {
		for i := range list {
			if strings.HasSuffix(list[i].ContainerID, "://"+id) {
				if running := list[i].State.Running; running != nil {
					started = running.StartedAt.Time
				}
				return list[i].Image, started
			}
		}
	}
	if spec, _ := pod.Find(p, name); spec != nil {
		image = spec.Image
	}
	return image, started
}
