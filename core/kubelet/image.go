// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podevents"
	"github.com/wasmplane/wasmplane/core/kubelet/podimage"
	"github.com/wasmplane/wasmplane/core/kubelet/pull"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

func (w *worker) pull(ctx context.Context, p *corev1.Pod, a pod.Pull) pod.Done {
	c, _ := pod.Find(p, a.Container)
	if c == nil {
		return pod.Done{Err: errors.New("no such container")}
	}
	ctx, span := w.Span(ctx, "image", p, attribute.String("k8s.container.name", c.Name), attribute.String("container.image.name", c.Image))
	ref := ""
	request, err := w.imageRequest(ctx, p, c)
	if err == nil {
		ref, err = w.images.Ensure(ctx, request)
	}
	podevents.End(span, err)
	if err == nil {
		return pod.Done{Image: ref}
	}
	var f *pull.Failure
	if !errors.As(err, &f) {
		f = &pull.Failure{Reason: pull.ErrImagePull, Message: err.Error()}
	}
	if ctx.Err() == nil {
		w.Event(p, c.Name, corev1.EventTypeWarning, "Failed", "Error: "+f.Reason)
	}
	return pod.Done{Err: err, Reason: f.Reason, Message: f.Message}
}

// imageRequest is a request for an image of one of the pod's containers.
func (w *worker) imageRequest(ctx context.Context, p *corev1.Pod, c *corev1.Container) (r podimage.Request, err error) {
	r = podimage.Request{Pod: p, Container: c.Name, Image: c.Image, Policy: c.ImagePullPolicy}
	if r.Sandbox, err = spec.Sandbox(p, 0, w.at(), w.cluster()); err != nil {
		return r, err
	}
	r.Handler, err = w.runtimeHandler(ctx, p)
	return r, err
}
