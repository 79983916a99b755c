// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/objects"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podevents"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

// execute does what a machine asked for and answers how it ended.
func (w *worker) execute(ctx context.Context, p *corev1.Pod, a pod.Action) pod.Done {
	switch a := a.(type) {
	case pod.Admit:
		return w.admit(ctx, p)
	case pod.Mount:
		return w.mount(ctx, p)
	case pod.StartSandbox:
		return w.startSandbox(ctx, p, a)
	case pod.StopSandbox:
		return w.endStep(ctx, "sandbox.stop", p, a.ID, w.cfg.Engine.StopSandbox)
	case pod.RemoveSandbox:
		return w.endStep(ctx, "sandbox.remove", p, a.ID, w.cfg.Engine.RemoveSandbox)
	case pod.Pull:
		return w.pull(ctx, p, a)
	case pod.Create:
		return w.create(ctx, p, a)
	case pod.Start:
		return w.start(ctx, p, a)
	case pod.PostStart:
		return w.postStart(ctx, p, a)
	case pod.PreStop:
		return w.stopHook(ctx, p, a)
	case pod.Kill:
		return w.kill(ctx, p, a)
	case pod.RemoveContainer:
		return w.endStep(ctx, "container.remove", p, a.ID, w.cfg.Engine.RemoveContainer)
	case pod.Grant:
		return w.grant(p)
	case pod.Resize:
		return w.resize(ctx, p, a)
	case pod.Bound:
		return w.reshape(ctx, p, "pod.resize", "", func(ctx context.Context) error { return w.rebound(ctx, p, a) })
	case pod.Teardown:
		return w.runStep(ctx, "teardown", p, w.teardown)
	case pod.Delete:
		return w.runStep(ctx, "delete", p, func(ctx context.Context) error { return w.writer.Delete(ctx, p) })
	case pod.Cleanup:
		return w.runStep(ctx, "cleanup", p, func(ctx context.Context) error { return w.cfg.Host.Erase(ctx, w.uid) })
	}
	return pod.Done{}
}

// endStep ends a container or sandbox in the runtime, and what of it the runtime does not know of.
func (w *worker) endStep(ctx context.Context, name string, p *corev1.Pod, id string, end func(context.Context, string) error) pod.Done {
	return w.runStep(ctx, name, p, func(ctx context.Context) error {
		if err := end(ctx, id); err != nil {
			return err
		}
		return w.killStrays(ctx, p, id)
	})
}

// runStep does what has no other outcome than that it is done or not.
func (w *worker) runStep(ctx context.Context, name string, p *corev1.Pod, do func(context.Context) error) pod.Done {
	ctx, span := w.Span(ctx, name, p)
	err := do(ctx)
	podevents.End(span, err)
	if err != nil && ctx.Err() == nil {
		w.log.WarnContext(ctx, "a step in a pod's end failed; trying again", "step", name, "kind", "Pod", "namespace", p.Namespace,
			"name", p.Name, "error", err)
	}
	return pod.Done{Err: err}
}

// plain is a runtime's message without gRPC's frame around it.
func plain(err error) string {
	if s, ok := grpcstatus.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

func gone(err error) bool { return grpcstatus.Code(err) == codes.NotFound }

func (w *worker) admit(ctx context.Context, p *corev1.Pod) pod.Done {
	v, err := w.owner.admit(ctx, p)
	if err != nil {
		w.log.WarnContext(ctx, "a pod can neither be admitted nor refused; trying again", "kind", "Pod", "namespace", p.Namespace,
			"name", p.Name, "error", err)
		return pod.Done{Err: err}
	}
	if v.Refused {
		w.Event(p, "", corev1.EventTypeWarning, v.Reason, v.Message)
		// Upstream's status says whose word it is.
		return pod.Done{Refused: true, Reason: v.Reason, Message: "Pod was rejected: " + v.Message}
	}
	return pod.Done{}
}

func (w *worker) mount(ctx context.Context, p *corev1.Pod) pod.Done {
	ctx, span := w.Span(ctx, "volumes", p, attribute.Int("wasmplane.volumes", len(p.Spec.Volumes)))
	w.cfg.Objects.Follow(p)
	place, err := w.cfg.Host.Claim(ctx, p)
	switch {
	case err != nil:
		w.Event(p, "", corev1.EventTypeWarning, "FailedCreatePodContainer", fmt.Sprintf("unable to ensure pod container exists: %v", err))
	default:
		w.mu.Lock()
		w.place = place
		w.mu.Unlock()
		err = objects.RetryForbidden(ctx, func() error { return w.cfg.Volumes.Mount(ctx, p) })
		if err != nil && ctx.Err() == nil {
			w.Event(p, "", corev1.EventTypeWarning, reasonOf(err, "FailedMount"), err.Error())
		}
	}
	podevents.End(span, err)
	var final interface{ PodReason() string }
	if errors.As(err, &final) {
		return pod.Done{Refused: true, Reason: final.PodReason(), Message: "Pod was rejected: " + err.Error()}
	}
	return pod.Done{Err: err}
}

// reasonOf an event is what the error itself names, or what is usual.
func reasonOf(err error, usual string) string {
	var own interface{ EventReason() string }
	if errors.As(err, &own) {
		return own.EventReason()
	}
	return usual
}

func (w *worker) at() spec.Place {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.place
}

func (w *worker) teardown(ctx context.Context) error {
	if err := w.cfg.Volumes.Unmount(ctx, w.uid); err != nil {
		w.Event(w.identity(), "", corev1.EventTypeWarning, reasonOf(err, "FailedUnmount"), err.Error())
		return fmt.Errorf("take volumes down: %w", err)
	}
	w.cfg.Objects.Unfollow(w.uid)
	if err := w.cfg.Host.Release(ctx, w.uid); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}
