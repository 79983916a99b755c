// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"

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

// known is a pod that has a worker; nil if none.
func (k *Kubelet) known(uid types.UID) *corev1.Pod {
	if w := k.worker(uid); w != nil {
		return w.identity()
	}
	return nil
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
		k.room.Changed(p)
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
		// The scheduler gives its place to others at once, even if the pod takes an hour to end: whoever was deleted by
		// force is not counted any more. Its devices it keeps for as long as it runs.
		k.room.Release(p.UID)
		w.remove(p)
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
	k.mu.Lock()
	ofFiles := map[types.UID]bool{}
	unread := k.cfg.Static != nil && k.static.wanted == nil
	for _, p := range k.static.wanted {
		ofFiles[p.UID] = true
	}
	k.mu.Unlock()
	known := func(uid types.UID) bool { return ofFiles[uid] || unread || k.worker(uid) != nil }
	k.cfg.Devices.Retain(known)
	k.left.Reap(ctx, known)
}
