// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"log/slog"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/evict"
	"github.com/wasmplane/wasmplane/core/kubelet/feeds"
	"github.com/wasmplane/wasmplane/core/kubelet/fit"
	"github.com/wasmplane/wasmplane/core/kubelet/fromcri"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podevents"
	"github.com/wasmplane/wasmplane/core/kubelet/podimage"
	"github.com/wasmplane/wasmplane/core/kubelet/probe"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
	"github.com/wasmplane/wasmplane/core/kubelet/status"
	"github.com/wasmplane/wasmplane/core/run"
)

// parts are what the workers of all pods of a node share. They know of no worker.
type parts struct {
	*podevents.Recorder
	cfg     Config
	log     *slog.Logger
	feeds   *feeds.Feeds
	room    *fit.Room
	writer  *status.Writer
	images  *podimage.Images
	probes  *probe.Manager
	node    *node.Registrar
	runtime string // its name
	tasks   run.Tasks
	turns   *semaphore.Weighted // of sandboxes that are made; nil = as many at a time as come
}

// turn waits until an action for a pod may begin; first come, first served, and critical pods at once. The caller calls done after
// it. Only sandboxes take turns: what follows comes in their pace, and a container's creation may wait for long, for what its
// pod's owner has made (a module that is compiled), for which no other pod should wait.
func (k *parts) turn(ctx context.Context, p *corev1.Pod, a pod.Action) (done func(), err error) {
	if _, sandbox := a.(pod.StartSandbox); !sandbox || k.turns == nil || evict.Critical(p) {
		return func() {}, nil
	}
	return func() { k.turns.Release(1) }, k.turns.Acquire(ctx, 1)
}

func (k *parts) cluster() spec.Cluster {
	return spec.Cluster{
		DNS: k.cfg.ClusterDNS, Domain: k.cfg.ClusterDomain, HostResolv: k.cfg.HostResolv, NodeName: k.cfg.NodeName,
		HostIPs: k.node.IPs(),
	}
}

// seen is a sandbox as the machine is to know it: of its addresses that of the node's own
// family is first, whatever the runtime prefers.
func (k *parts) seen(st *cri.PodSandboxStatus) pod.Sandbox {
	sb := fromcri.Sandbox(st)
	if own := k.node.IPs(); len(own) > 0 {
		fromcri.OwnFamilyFirst(sb.IPs, own[0])
	}
	return sb
}

func (k *parts) statusNode() status.Node {
	return status.Node{HostIPs: k.node.IPs(), Runtime: k.runtime}
}

// container takes what the runtime says of a container, and what it left as its last words.
func (k *parts) container(ctx context.Context, p *corev1.Pod, st *cri.ContainerStatus, sandbox string) pod.Container {
	c := fromcri.Container(st, sandbox)
	if c.State == pod.Exited {
		if msg := k.cfg.Host.LastWords(ctx, p, st); msg != "" {
			if c.Message != "" {
				c.Message += ": "
			}
			c.Message += msg
		}
	}
	return c
}

// probeEvent records what a probe found.
func (k *parts) probeEvent(p *corev1.Pod, c *corev1.Container, kind, reason, message string) {
	k.Event(p, c.Name, kind, reason, message)
}
