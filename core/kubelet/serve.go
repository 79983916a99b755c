// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"maps"
	"sort"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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
		return w.exits.Of(container)
	}
	ch := make(chan struct{})
	close(ch)
	return ch
}

// Disk is how full the node's disk is, and what pods hold of it, as far as it was measured; ok is false on nodes without one.
func (k *Kubelet) Disk(ctx context.Context) (fs diskusage.FileSystem, pods *diskusage.Pods, ok bool) {
	if fs, ok = k.FileSystem(ctx); ok {
		pods = k.upkeep.Disk()
	}
	return fs, pods, ok
}

// Config as far as it may be told.
func (k *Kubelet) Config() any {
	config := map[string]any{
		"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
		"clusterDNS": k.cfg.ClusterDNS, "clusterDomain": k.cfg.ClusterDomain,
	}
	maps.Copy(config, k.Configuration())
	if s, ok := k.cfg.Static.(interface{ Dir() string }); ok {
		config["staticPodPath"] = s.Dir()
	}
	return config
}
