// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/feeds"
	"github.com/wasmplane/wasmplane/core/kubelet/fromcri"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/run"
)

// follow keeps up with the runtime: its events, and when they break off, or
// after a long time, a list of everything.
func (k *Kubelet) follow(ctx context.Context) error {
	defer k.feeds.Unfollow(k.cfg.NodeName)
	retry := run.Backoff{First: 50 * time.Millisecond, Longest: 10 * time.Second}
	for ctx.Err() == nil {
		sub, cancel := context.WithCancel(ctx)
		ch, err := k.cfg.Engine.Events(sub)
		if err == nil {
			err = k.relist(ctx)
		}
		if err != nil {
			cancel()
			wait := retry.Next()
			k.log.WarnContext(ctx, "the container runtime does not answer; trying again", "error", err, "retryIn", wait)
			k.node.RuntimeFailed(err)
			if !run.Sleep(ctx, wait) {
				return nil
			}
			continue
		}
		k.node.RuntimeFailed(nil)
		k.beginStatic(ctx)
		retry.Reset()
		k.consume(ctx, ch)
		cancel()
	}
	return nil
}

// consume hands events to the pods that they are about until the channel breaks off.
func (k *Kubelet) consume(ctx context.Context, ch <-chan *cri.ContainerEventResponse) {
	t := time.NewTicker(k.cfg.Resync)
	defer t.Stop()
	joined := k.joined
	if k.following {
		joined = nil
	}
	for {
		select {
		case <-ctx.Done():
			return
		case ev, ok := <-ch:
			if !ok {
				return
			}
			k.runtimeEvent(ctx, ev)
		case <-joined:
			joined = nil
			if err := k.followAPI(ctx); err != nil {
				k.log.WarnContext(ctx, "the container runtime cannot be listed", "error", err)
				return
			}
		case <-k.static.read:
			if k.following {
				k.reap(ctx)
			}
		case <-t.C:
			if err := k.relist(ctx); err != nil {
				k.log.WarnContext(ctx, "the container runtime cannot be listed", "error", err)
				return
			}
			if k.following {
				k.reap(ctx)
			}
		}
	}
}

func (k *Kubelet) runtimeEvent(ctx context.Context, ev *cri.ContainerEventResponse) {
	sb := ev.GetPodSandboxStatus()
	w := k.worker(fromcri.UID(sb.GetLabels()))
	if w == nil {
		return
	}
	snap := pod.Snapshot{Sandboxes: []pod.Sandbox{k.seen(sb)}}
	for _, c := range ev.GetContainersStatuses() {
		snap.Containers = append(snap.Containers, k.container(ctx, w.identity(), c, sb.GetId()))
	}
	if ev.ContainerEventType == cri.ContainerEventType_CONTAINER_DELETED_EVENT {
		if ev.ContainerId != sb.GetId() {
			w.send(pod.Observed{Snapshot: snap})
		}
		w.send(pod.Deleted{ID: ev.ContainerId})
		return
	}
	w.send(pod.Observed{Snapshot: snap})
}

// followAPI takes the API's pods, with what the runtime holds of them now.
func (k *Kubelet) followAPI(ctx context.Context) error {
	if err := k.relist(ctx); err != nil {
		return err
	}
	k.following = true
	k.feeds.Follow(k.cfg.NodeName, feeds.Follower{Changed: func(p *corev1.Pod) { k.podChanged(ctx, p) }, Gone: k.podGone})
	k.reap(ctx)
	k.staticSync()
	close(k.ready)
	k.mirrors.Join(ctx, k.rounds)
	return nil
}

// relist asks the runtime for everything. Until the API's pods are followed, what it
// holds of pods that are not known is kept for them.
func (k *Kubelet) relist(ctx context.Context) error {
	since := time.Now()
	found, err := k.left.Snapshots(ctx)
	if err != nil {
		return err
	}
	k.mu.Lock()
	if !k.following {
		k.adopted = found
	}
	k.mu.Unlock()
	for _, w := range k.all() {
		w.send(pod.Observed{Snapshot: found[w.uid], Complete: true, Since: since})
	}
	return nil
}

// awaitRuntime waits until the runtime says who it is.
func (k *Kubelet) awaitRuntime(ctx context.Context) error {
	retry := run.Backoff{First: 50 * time.Millisecond, Longest: 5 * time.Second}
	for {
		name, _, err := k.cfg.Engine.Version(ctx)
		if err == nil {
			k.runtime = name
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		wait := retry.Next()
		k.log.WarnContext(ctx, "the container runtime does not answer yet; trying again", "error", err, "retryIn", wait)
		if !run.Sleep(ctx, wait) {
			return ctx.Err()
		}
	}
}
