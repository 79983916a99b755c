// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/fromcri"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podevents"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

func (w *worker) startSandbox(ctx context.Context, p *corev1.Pod, a pod.StartSandbox) pod.Done {
	ctx, span := w.Span(ctx, "sandbox", p)
	sb, err := w.runSandbox(ctx, p, a.Attempt)
	podevents.End(span, err)
	if err != nil && ctx.Err() == nil {
		w.Event(p, "", corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+plain(err))
		w.observeSandboxes(ctx)
	}
	return pod.Done{Err: err, Sandbox: sb}
}

func (w *worker) runSandbox(ctx context.Context, p *corev1.Pod, attempt uint32) (*pod.Sandbox, error) {
	cfg, err := spec.Sandbox(p, attempt, w.at(), w.cluster())
	if err != nil {
		return nil, err
	}
	handler, err := w.runtimeHandler(ctx, p)
	if err != nil {
		return nil, err
	}
	if pod.OwnUsers(p) {
		if err := engine.OffersUsers(ctx, w.cfg.Engine, handler); err != nil {
			return nil, err
		}
	}
	id, err := w.cfg.Engine.RunSandbox(ctx, cfg, handler)
	if err != nil {
		return nil, err
	}
	st, err := w.cfg.Engine.SandboxStatus(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("ask for the sandbox that was made: %w", err)
	}
	sb := w.seen(st)
	return &sb, nil
}

// observeSandboxes takes in what a failed attempt may have left behind: a sandbox that
// failed can still hold its network.
func (w *worker) observeSandboxes(ctx context.Context) {
	list, err := w.cfg.Engine.ListSandboxes(ctx)
	if err != nil {
		return
	}
	var snap pod.Snapshot
	for _, sb := range list {
		if fromcri.UID(sb.Labels) != w.uid {
			continue
		}
		if st, err := w.cfg.Engine.SandboxStatus(ctx, sb.Id); err == nil {
			snap.Sandboxes = append(snap.Sandboxes, w.seen(st))
		}
	}
	w.send(pod.Observed{Snapshot: snap})
}

func (k *parts) runtimeHandler(ctx context.Context, p *corev1.Pod) (string, error) {
	name := p.Spec.RuntimeClassName
	if name == nil || *name == "" {
		return "", nil
	}
	rc, err := k.runtimeClass(ctx, *name)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("RuntimeClass %q not found", *name)
	}
	if err != nil {
		return "", fmt.Errorf("failed to find runtimeClass %q: %w", *name, err)
	}
	return rc.Handler, nil
}

// runtimeClass is asked for when a pod names one: few do.
func (k *parts) runtimeClass(ctx context.Context, name string) (*nodev1.RuntimeClass, error) {
	return k.cfg.Client.NodeV1().RuntimeClasses().Get(ctx, name, metav1.GetOptions{})
}
