// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

// grant decides whether a running pod may have the resources that it now asks for.
func (w *worker) grant(p *corev1.Pod) pod.Done {
	node, err := w.feeds.Node(w.cfg.NodeName)
	if err != nil {
		return pod.Done{Err: err}
	}
	asked := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		want, have := asked[name], node.Status.Allocatable[name]
		if want.Cmp(have) > 0 {
			n, m := want.Value(), have.Value()
			if name == corev1.ResourceCPU {
				n, m = want.MilliValue(), have.MilliValue()
			}
			return w.hold(p, corev1.PodReasonInfeasible, fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, n,
				m))
		}
	}
	if v := w.room.Resize(p, node); v.Refused {
		return w.hold(p, corev1.PodReasonDeferred, v.Message)
	}
	return pod.Done{}
}

func (w *worker) hold(p *corev1.Pod, reason, message string) pod.Done {
	w.event(p, "", corev1.EventTypeWarning, "Resize"+reason, message)
	return pod.Done{Refused: true, Reason: reason, Message: message}
}

// resize brings changed resources to a container that runs, and to its pod's cgroup.
func (w *worker) resize(ctx context.Context, p *corev1.Pod, a pod.Resize) pod.Done {
	ctx, span := w.span(ctx, "container.resize", p)
	err := w.update(ctx, p, a)
	end(span, err)
	if err == nil {
		w.event(p, a.Container, corev1.EventTypeNormal, "ResizeCompleted", "Container resize completed")
		return pod.Done{}
	}
	if ctx.Err() == nil {
		w.event(p, a.Container, corev1.EventTypeWarning, "ResizeError", plain(err))
	}
	return pod.Done{Err: err, Message: plain(err)}
}

func (w *worker) update(ctx context.Context, p *corev1.Pod, a pod.Resize) error {
	c, _ := container(p, a.Container)
	if c == nil {
		return errors.New("no such container")
	}
	if err := w.roomFor(ctx, a); err != nil {
		return err
	}
	node, err := w.feeds.Node(w.cfg.NodeName)
	if err != nil {
		return fmt.Errorf("look at the node: %w", err)
	}
	own := *c
	own.Resources.Requests, own.Resources.Limits = a.To.Requests, a.To.Limits
	memory := node.Status.Capacity[corev1.ResourceMemory]
	// The pod's own bounds come first where they grow: with cgroup v1 the kernel refuses a container more time of the
	// processors than its pod has. Where they shrink it refuses the pod less than its containers have, and they come last.
	_, early := w.cfg.Host.Claim(ctx, p)
	if err := w.cfg.Engine.UpdateResources(ctx, a.ID, spec.Resources(p, &own, memory.Value(), w.at().CgroupV2)); err != nil {
		return err
	}
	if early == nil {
		return nil
	}
	if _, err := w.cfg.Host.Claim(ctx, p); err != nil {
		return fmt.Errorf("resize the pod's cgroup: %w", err)
	}
	return nil
}

// roomFor refuses a memory limit below what the container uses: the kernel would kill it.
func (w *worker) roomFor(ctx context.Context, a pod.Resize) error {
	to, from := a.To.Limits.Memory(), a.From.Limits.Memory()
	if to.IsZero() || !from.IsZero() && to.Cmp(*from) >= 0 {
		return nil
	}
	list, err := w.cfg.Engine.Stats(ctx)
	if err != nil {
		return fmt.Errorf("see how much memory the container uses: %w", err)
	}
	for _, p := range list {
		for _, c := range p.GetLinux().GetContainers() {
			if c.GetAttributes().GetId() != a.ID {
				continue
			}
			if used := c.GetMemory().GetWorkingSetBytes().GetValue(); used > uint64(max(to.Value(), 0)) {
				return fmt.Errorf("cannot decrease memory limits: attempting to set container %s memory limit (%d) below current usage (%d)", a.Container, to.Value(), used)
			}
		}
	}
	return nil
}
