// SPDX-License-Identifier: Apache-2.0

// Package podevents tells of what a kubelet does with its pods: by events, which users
// see, and by spans of the trace.
//
// It guarantees that an event about a container names the container's place in the
// pod's specification, as upstream's do, and that a span leads to the pod's owner.
package podevents

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/trace"
)

// Recorder of one node.
type Recorder struct {
	Node   string
	Tracer oteltrace.Tracer
	// Events is set before the first event.
	Events record.EventRecorder
}

// Span begins a span about a pod.
func (r *Recorder) Span(ctx context.Context, name string, p *corev1.Pod, attrs ...attribute.KeyValue) (context.Context, oteltrace.Span) {
	attrs = append(attrs, trace.ComponentKey.String("kubelet"), trace.NodeKey.String(r.Node))
	for _, o := range p.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			attrs = append(attrs, trace.OwnerUIDKey.String(string(o.UID)))
		}
	}
	return r.Tracer.Start(ctx, name, trace.Object("Pod", p.Namespace, p.Name, p.UID), oteltrace.WithAttributes(attrs...))
}

// End ends a span, with the error that there was.
func End(span oteltrace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(otelcodes.Error, err.Error())
	}
	span.End()
}

// Event records an event about a pod, or about one of its containers.
func (r *Recorder) Event(p *corev1.Pod, containerName, kind, reason, message string) {
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
	r.Events.Event(ref, kind, reason, message)
}

// NodeEvent records an event about the node, once the kubelet runs.
func (r *Recorder) NodeEvent(kind, reason, message string) {
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.Node, UID: types.UID(r.Node)}
	r.Events.Event(node, kind, reason, message)
}
