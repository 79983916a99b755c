// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"maps"
	"sort"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
	"github.com/wasmplane/wasmplane/core/kubelet/engine"
)

// The methods below make a Kubelet a server.Node.

// Pods with the statuses that the kubelet last made.
func (k *Kubelet) Pods() []*corev1.Pod {
	workers := k.all()
	out := make([]*corev1.Pod, 0, len(workers))
	for _, w := range workers {
		out = append(out, k.current(w))
	}
	sort.Slice(out, func(i, j int) bool {
		return out[i].Namespace+"/"+out[i].Name < out[j].Namespace+"/"+out[j].Name
	})
	return out
}

// current is a pod with its newest status.
func (k *Kubelet) current(w *worker) *corev1.Pod {
	p := w.identity()
	st := w.lastStatus()
	if st == nil {
		return p
	}
	c := *p
	c.Status = *st
	return &c
}

// Pod by its name and, unless empty, its UID. Of two of a name, the one that is not being deleted.
func (k *Kubelet) Pod(namespace, name string, uid types.UID) *corev1.Pod {
	k.mu.Lock()
	var found *worker
	for _, w := range k.workers {
		p := w.identity()
		if p.Namespace != namespace || p.Name != name || uid != "" && p.UID != uid {
			continue
		}
		if found == nil || found.identity().DeletionTimestamp != nil {
			found = w
		}
	}
	k.mu.Unlock()
	if found == nil {
		return nil
	}
	return k.current(found)
}

// Refresh looks at the node's state now instead of at the next interval. Callers use it
// when they know that the state has just changed.
func (k *Kubelet) Refresh() { k.node.Refresh() }

// Runtime that runs the pods.
func (k *Kubelet) Runtime() engine.Engine { return k.cfg.Engine }

// ProbeMetrics are those of the probes of the node's pods.
func (k *Kubelet) ProbeMetrics() prometheus.Gatherer { return k.probes.Metrics() }

// Sandbox of a pod, if it is ready.
func (k *Kubelet) Sandbox(uid types.UID) string {
	w := k.worker(uid)
	if w == nil {
		return ""
	}
	return w.readySandbox()
}

// Exited is closed when a container has ended.
func (k *Kubelet) Exited(uid types.UID, container string) <-chan struct{} {
	if w := k.worker(uid); w != nil {
		return w.exited(container)
	}
	ch := make(chan struct{})
	close(ch)
	return ch
}

// machine is an optional power of Host: what all of the machine uses.
type machine interface {
	Usage(ctx context.Context) (cpu uint64, memory *cri.MemoryUsage, err error)
}

// Usage of the node's machine; ok is false where only what its pods use is known.
func (k *Kubelet) Usage(ctx context.Context) (cpu uint64, memory *cri.MemoryUsage, ok bool) {
	m, ok := k.cfg.Host.(machine)
	if !ok {
		return 0, nil, false
	}
	cpu, memory, err := m.Usage(ctx)
	if err != nil {
		k.log.WarnContext(ctx, "what the machine uses cannot be seen; the sum of its pods stands for it", "error", err)
	}
	return cpu, memory, err == nil
}

// disk is an optional power of Host: the file system that pods and images are on.
type disk interface {
	FileSystem(ctx context.Context) (diskusage.FileSystem, error)
}

// Disk is how full the node's disk is, and what pods hold of it, as far as it was measured; ok is false on nodes without one.
func (k *Kubelet) Disk(ctx context.Context) (fs diskusage.FileSystem, pods *diskusage.Pods, ok bool) {
	d, ok := k.cfg.Host.(disk)
	if !ok {
		return fs, nil, false
	}
	fs, err := d.FileSystem(ctx)
	if err != nil {
		k.log.WarnContext(ctx, "how full the disk is cannot be seen", "error", err)
		return fs, nil, false
	}
	return fs, k.upkeep.Disk(), true
}

// logKeeper is an optional power of Host: a machine that keeps logs.
type logKeeper interface {
	// MachineLogs is the folder of its logs, empty where they are not served.
	MachineLogs() string
	// LogQueries says whether services' logs may be asked for by queries.
	LogQueries() bool
}

// MachineLogs is the folder of the logs of the node's machine, empty where it has none.
func (k *Kubelet) MachineLogs() string {
	if h, ok := k.cfg.Host.(logKeeper); ok {
		return h.MachineLogs()
	}
	return ""
}

// LogQueries says whether services' logs of the node's machine may be asked for by queries.
func (k *Kubelet) LogQueries() bool {
	h, ok := k.cfg.Host.(logKeeper)
	return ok && h.LogQueries()
}

// Real tells whether the node is this machine, by what its host can say of it.
func (k *Kubelet) Real() bool {
	_, ok := k.cfg.Host.(machine)
	return ok
}

// Config as far as it may be told.
func (k *Kubelet) Config() any {
	config := map[string]any{
		"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
		"clusterDNS": k.cfg.ClusterDNS, "clusterDomain": k.cfg.ClusterDomain,
	}
	if h, ok := k.cfg.Host.(configured); ok {
		maps.Copy(config, h.Configuration())
	}
	return config
}

// configured is an optional power of a Host: to say how it is configured, in the words
// of a KubeletConfiguration.
type configured interface{ Configuration() map[string]any }
