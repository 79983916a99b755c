// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/static"
)

func (k *Kubelet) worker(uid types.UID) *worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.workers[uid]
}

// podChanged takes a pod from the API.
func (k *Kubelet) podChanged(ctx context.Context, p *corev1.Pod) {
	k.writer.Seen(p)
	if static.IsMirror(p) {
		k.mirrors.Changed(p)
		return
	}
	k.run(ctx, p)
}

// run has a worker for the pod, or tells the one that it has.
func (k *Kubelet) run(ctx context.Context, p *corev1.Pod) {
	k.mu.Lock()
	w := k.workers[p.UID]
	if w != nil {
		k.mu.Unlock()
		k.cfg.Volumes.Update(p)
		w.send(pod.Updated{Pod: p})
		return
	}
	w = newWorker(k.parts, k, p, k.adopted[p.UID])
	delete(k.adopted, p.UID)
	k.workers[p.UID] = w
	if s := w.machine.Stage(); s == pod.Syncing {
		k.room.Keep(p)
	}
	k.mu.Unlock()
	k.tasks.Go("kubelet: pod", func() { w.run(ctx) })
}

// podGone takes note that the API no longer has a pod.
func (k *Kubelet) podGone(p *corev1.Pod) {
	if static.IsMirror(p) {
		k.writer.Forget(p.UID)
		k.mirrors.Gone(p)
		return
	}
	if w := k.worker(p.UID); w != nil {
		w.send(pod.Removed{Pod: p})
	}
}

// probed takes a probe's verdict.
func (k *Kubelet) probed(uid types.UID, ev pod.Probed) {
	if w := k.worker(uid); w != nil {
		w.send(ev)
	}
}

// forget drops a pod of which nothing is left.
func (k *Kubelet) forget(w *worker) {
	k.probes.Forget(w.machine.Pod())
	k.cfg.Objects.Unfollow(w.uid)
	k.writer.Forget(w.uid)
	k.mu.Lock()
	delete(k.workers, w.uid)
	k.mu.Unlock()
	k.vacate(w.uid)
	if w.static {
		k.staticSync()
	}
}

// reap removes from the runtime, and from the machine, the pods that the API does not know.
func (k *Kubelet) reap(ctx context.Context) {
	found, err := k.snapshots(ctx)
	if err != nil {
		k.log.WarnContext(ctx, "orphaned pods cannot be looked for", "error", err)
		return
	}
	k.mu.Lock()
	ofFiles := map[types.UID]bool{}
	unread := k.cfg.Static != nil && k.static.wanted == nil
	for _, p := range k.static.wanted {
		ofFiles[p.UID] = true
	}
	k.mu.Unlock()
	known := func(uid types.UID) bool { return ofFiles[uid] || unread || k.worker(uid) != nil }
	k.cfg.Devices.Retain(known)
	for uid, snap := range found {
		if !known(uid) {
			k.log.InfoContext(ctx, "removing a pod that neither the API nor a file knows", "uid", uid)
			k.tasks.Go("kubelet: removal of an orphan", func() { k.remove(ctx, uid, snap) })
		}
	}
	left, err := k.cfg.Host.Claimed(ctx)
	if err != nil {
		k.log.WarnContext(ctx, "leftovers of pods cannot be looked for", "error", err)
	}
	for _, uid := range left {
		if _, runs := found[uid]; !runs && !known(uid) {
			k.tasks.Go("kubelet: removal of leftovers", func() { k.sweep(ctx, uid) })
		}
	}
}

func (k *Kubelet) remove(ctx context.Context, uid types.UID, snap pod.Snapshot) {
	const grace = 1
	var wg sync.WaitGroup
	for _, c := range snap.Containers {
		if c.State == pod.Running {
			wg.Go(func() {
				if err := k.cfg.Engine.StopContainer(ctx, c.ID, grace); err != nil && ctx.Err() == nil {
					k.log.WarnContext(ctx, "a container of an orphaned pod cannot be stopped", "uid", uid, "container", c.ID, "error", err)
				}
			})
		}
	}
	wg.Wait()
	for _, sb := range snap.Sandboxes {
		err := k.cfg.Engine.StopSandbox(ctx, sb.ID)
		if err == nil {
			err = k.cfg.Engine.RemoveSandbox(ctx, sb.ID)
		}
		if err != nil {
			k.log.WarnContext(ctx, "an orphaned sandbox cannot be removed; the next resync tries again", "uid", uid, "sandbox", sb.ID, "error", err)
			return
		}
	}
	if len(snap.Sandboxes) == 0 {
		for _, c := range snap.Containers {
			if err := k.cfg.Engine.RemoveContainer(ctx, c.ID); err != nil {
				k.log.WarnContext(ctx, "an orphaned container cannot be removed; the next resync tries again", "uid", uid, "container", c.ID,
					"error", err)
			}
		}
	}
	k.sweep(ctx, uid)
}

// sweep removes what a pod left on the machine.
func (k *Kubelet) sweep(ctx context.Context, uid types.UID) {
	err := k.cfg.Volumes.Unmount(ctx, uid)
	if err == nil {
		err = k.cfg.Host.Release(ctx, uid)
	}
	if err == nil {
		err = k.cfg.Host.Erase(ctx, uid)
	}
	if err != nil && ctx.Err() == nil {
		k.log.WarnContext(ctx, "leftovers of a pod cannot be removed; the next resync tries again", "uid", uid, "error", err)
	}
}
