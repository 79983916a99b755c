// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/fit"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podbounds"
	"github.com/wasmplane/wasmplane/core/kubelet/podevents"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
	"github.com/wasmplane/wasmplane/core/kubelet/status"
)

// grant decides whether a running pod may have the resources that it now asks for.
func (w *worker) grant(p *corev1.Pod) pod.Done {
	node, err := w.feeds.Node(w.cfg.NodeName)
	if err != nil {
		return pod.Done{Err: err}
	}
	if why := fit.Infeasible(p, node); why != "" {
		w.room.GiveUp(p.UID)
		return w.hold(p, corev1.PodReasonInfeasible, why)
	}
	if v := w.room.Resize(p, node); v.Refused {
		return w.hold(p, corev1.PodReasonDeferred, v.Message)
	}
	return pod.Done{}
}

func (w *worker) hold(p *corev1.Pod, reason, message string) pod.Done {
	w.Event(p, "", corev1.EventTypeWarning, "Resize"+reason, message)
	return pod.Done{Refused: true, Reason: reason, Message: message}
}

// resize brings changed resources to a container that runs.
func (w *worker) resize(ctx context.Context, p *corev1.Pod, a pod.Resize) pod.Done {
	done := w.reshape(ctx, p, "container.resize", a.Container, func(ctx context.Context) error { return w.update(ctx, p, a) })
	if done.Err == nil {
		w.Event(p, a.Container, corev1.EventTypeNormal, "ResizeCompleted", "Container resize completed")
	}
	return done
}

func (w *worker) reshape(ctx context.Context, p *corev1.Pod, what, container string, do func(context.Context) error) pod.Done {
	ctx, span := w.Span(ctx, what, p)
	err := do(ctx)
	podevents.End(span, err)
	if err == nil {
		return pod.Done{}
	}
	if ctx.Err() == nil {
		w.Event(p, container, corev1.EventTypeWarning, "ResizeError", plain(err))
	}
	return pod.Done{Err: err, Message: plain(err)}
}

func (w *worker) update(ctx context.Context, p *corev1.Pod, a pod.Resize) error {
	c, _ := pod.Find(p, a.Container)
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
	return w.cfg.Engine.UpdateResources(ctx, a.ID, spec.Resources(p, &own, memory.Value(), w.at()))
}

// rebound changes the bounds of the pod's cgroup.
func (w *worker) rebound(ctx context.Context, p *corev1.Pod, a pod.Bound) error {
	if to := a.To.MemoryLimit; to > 0 && (a.From.MemoryLimit == 0 || to < a.From.MemoryLimit) {
		used, err := w.memoryUsed(ctx, func(string) bool { return true })
		if err != nil {
			return err
		}
		if used > uint64(to) {
			return fmt.Errorf("cannot decrease memory limits: attempting to set pod memory limit (%d) below current usage (%d)", to, used)
		}
	}
	to := a.To.Bounded(p)
	to.Status.QOSClass = status.QOS(p) // which its cgroup is named after
	if _, err := w.cfg.Host.Claim(ctx, to); err != nil {
		return fmt.Errorf("resize the pod's cgroup: %w", err)
	}
	return nil
}

// roomFor refuses a memory limit below what the container uses: the kernel would kill it.
func (w *worker) roomFor(ctx context.Context, a pod.Resize) error {
	to, from := podbounds.Inherit(a.To, a.ToLevel).Limits.Memory(), podbounds.Inherit(a.From, a.FromLevel).Limits.Memory()
	if to.IsZero() || !from.IsZero() && to.Cmp(*from) >= 0 {
		return nil
	}
	used, err := w.memoryUsed(ctx, func(id string) bool { return id == a.ID })
	if err != nil {
		return err
	}
	if used > uint64(max(to.Value(), 0)) {
		return fmt.Errorf("cannot decrease memory limits: attempting to set container %s memory limit (%d) below current usage (%d)", a.Container, to.Value(), used)
	}
	return nil
}

// memoryUsed is what those of the pod's containers use that are meant.
func (w *worker) memoryUsed(ctx context.Context, meant func(id string) bool) (uint64, error) {
	list, err := w.cfg.Engine.Stats(ctx)
	if err != nil {
		return 0, fmt.Errorf("see how much memory is used: %w", err)
	}
	return engine.MemoryUsed(list, w.uid, meant), nil
}
