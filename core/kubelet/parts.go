// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/feeds"
	"github.com/wasmplane/wasmplane/core/kubelet/fit"
	"github.com/wasmplane/wasmplane/core/kubelet/fromcri"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/probe"
	"github.com/wasmplane/wasmplane/core/kubelet/pull"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
	"github.com/wasmplane/wasmplane/core/kubelet/status"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/trace"
)

// parts are what the workers of all pods of a node share. They know of no worker.
type parts struct {
	cfg     Config
	log     *slog.Logger
	feeds   *feeds.Feeds
	room    *fit.Room
	rec     record.EventRecorder
	writer  *status.Writer
	puller  *pull.Puller
	probes  *probe.Manager
	node    *node.Registrar
	runtime string // its name
	tasks   run.Tasks
}

// span begins a span about a pod.
func (k *parts) span(ctx context.Context, name string, p *corev1.Pod, attrs ...attribute.KeyValue) (context.Context, oteltrace.Span) {
	attrs = append(attrs, trace.ComponentKey.String("kubelet"), trace.NodeKey.String(k.cfg.NodeName))
	for _, o := range p.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			attrs = append(attrs, trace.OwnerUIDKey.String(string(o.UID)))
		}
	}
	return k.cfg.Tracer.Start(ctx, name, trace.Object("Pod", p.Namespace, p.Name, p.UID), oteltrace.WithAttributes(attrs...))
}

func end(span oteltrace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(otelcodes.Error, err.Error())
	}
	span.End()
}

// event records an event about a pod, or about one of its containers.
func (k *parts) event(p *corev1.Pod, containerName, kind, reason, message string) {
	ref := &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID,
		ResourceVersion: p.ResourceVersion,
	}
	if containerName != "" {
		if c, kd := pod.Find(p, containerName); c != nil {
			field := map[pod.Kind]string{
				pod.Init: "initContainers", pod.Sidecar: "initContainers", pod.Regular: "containers",
				pod.Ephemeral: "ephemeralContainers",
			}[kd]
			ref.FieldPath = fmt.Sprintf("spec.%s{%s}", field, containerName)
		}
	}
	k.rec.Event(ref, kind, reason, message)
}

// NodeEvent records an event about the node, once the kubelet runs.
func (k *parts) NodeEvent(kind, reason, message string) {
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: k.cfg.NodeName, UID: types.UID(k.cfg.NodeName)}
	k.rec.Event(node, kind, reason, message)
}

// probeEvent records what a probe found.
func (k *parts) probeEvent(p *corev1.Pod, c *corev1.Container, kind, reason, message string) {
	k.event(p, c.Name, kind, reason, message)
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
	if own := k.node.IPs(); len(own) > 0 && len(sb.IPs) > 1 {
		six := strings.Contains(own[0], ":")
		slices.SortStableFunc(sb.IPs, func(a, b string) int {
			if x, y := strings.Contains(a, ":") == six, strings.Contains(b, ":") == six; x != y {
				if x {
					return -1
				}
				return 1
			}
			return 0
		})
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
