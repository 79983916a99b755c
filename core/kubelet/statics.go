// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/mirror"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/static"
)

// StaticPods are the pods that a node runs from files.
type StaticPods interface {
	// Run calls changed with all pods, at first and when they have changed, and failed
	// with what is wrong with a file, until ctx ends.
	Run(ctx context.Context, changed func([]*corev1.Pod), failed func(error)) error
}

// statics are the pods of files; guarded by the Kubelet's lock.
type statics struct {
	begun bool
	// wanted are the pods of the files; nil before these have been read.
	wanted map[types.NamespacedName]*corev1.Pod
	// changed has the pods looked at again, read what the runtime has beyond them.
	changed, read chan struct{}
}

func newStatics() statics {
	return statics{changed: make(chan struct{}, 1), read: make(chan struct{}, 1)}
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// nodeFor is the node as the API has it, or, to a pod that needs no API, as it is to be registered.
func (k *parts) nodeFor(p *corev1.Pod) (*corev1.Node, error) {
	n, err := k.feeds.Node(k.cfg.NodeName)
	if local := k.node.Local(); err != nil && static.Is(p) && local != nil {
		return local, nil
	}
	return n, err
}

// beginStatic begins to run the pods of files, once what the runtime holds is known.
func (k *Kubelet) beginStatic(ctx context.Context) {
	if k.cfg.Static == nil || k.static.begun {
		return
	}
	k.static.begun = true
	k.tasks.Go("kubelet: static pods", func() { k.runStatic(ctx) })
	k.tasks.Go("kubelet: folder of static pods", func() {
		err := k.cfg.Static.Run(ctx, func(pods []*corev1.Pod) {
			wanted := map[types.NamespacedName]*corev1.Pod{}
			for _, p := range pods {
				wanted[static.Key(p)] = p
			}
			k.mu.Lock()
			first := k.static.wanted == nil
			k.static.wanted = wanted
			k.mu.Unlock()
			if first {
				k.removeFormer(ctx, pods)
				nudge(k.static.read)
			}
			k.staticSync()
		}, func(err error) { k.staticFailed(ctx, err) })
		if err != nil && ctx.Err() == nil {
			k.staticFailed(ctx, err)
		}
	})
}

// removeFormer ends what runs of files that were changed or removed while no kubelet ran,
// before their successors come, and whether or not the API is there.
func (k *Kubelet) removeFormer(ctx context.Context, pods []*corev1.Pod) {
	k.mu.Lock()
	over := map[types.UID]pod.Snapshot{}
	for uid, snap := range k.adopted {
		if snap.Static && k.workers[uid] == nil {
			over[uid] = snap
		}
	}
	k.mu.Unlock()
	for _, p := range pods {
		delete(over, p.UID)
	}
	for uid, snap := range over {
		k.log.InfoContext(ctx, "removing a static pod whose file was changed or removed", "uid", uid)
		k.left.Remove(ctx, uid, snap)
	}
}

// staticFailed says what is wrong with a file, to who reads the log and to who looks at the node.
func (k *Kubelet) staticFailed(ctx context.Context, err error) {
	k.log.WarnContext(ctx, "a static pod's file is not as it should be; what ran from it goes on", "error", err)
	k.NodeEvent(corev1.EventTypeWarning, "InvalidStaticPod", err.Error())
}

// staticSync has static pods and mirrors looked at again.
func (k *Kubelet) staticSync() {
	nudge(k.static.changed)
	k.mirrors.Refresh()
}

// runStatic brings the workers of static pods to what the files say until ctx ends.
func (k *Kubelet) runStatic(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.static.changed:
		}
		k.mu.Lock()
		wanted := k.static.wanted
		taken := map[types.NamespacedName]bool{}
		var over []*worker
		for _, w := range k.workers {
			if !w.static {
				continue
			}
			p := w.identity()
			taken[static.Key(p)] = true
			if now := wanted[static.Key(p)]; wanted != nil && (now == nil || now.UID != w.uid) {
				over = append(over, w)
			}
		}
		adopted := k.adopted
		k.mu.Unlock()
		for _, w := range over {
			w.send(pod.Removed{})
		}
		for key, p := range wanted {
			if !taken[key] { // else it waits until the former one is forgotten
				k.log.InfoContext(ctx, "static pod starts", "kind", "Pod", "namespace", p.Namespace, "name", p.Name, "uid", p.UID,
					"adopted", len(adopted[p.UID].Sandboxes) > 0)
				k.run(ctx, p)
			}
		}
		k.mirrors.Refresh()
	}
}

// staticPods are those that there are, with those that end: their mirrors show that.
func (k *Kubelet) staticPods() (mirror.Pods, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	pods := mirror.Pods{}
	for _, w := range k.workers {
		if w.static {
			p := w.identity()
			pods[static.Key(p)] = p
		}
	}
	return pods, k.cfg.Static == nil || k.static.wanted != nil
}

// mirrored is told of the API's mirror of a static pod.
func (k *Kubelet) mirrored(m *corev1.Pod) {
	if w := k.worker(types.UID(m.Annotations[corev1.MirrorPodAnnotationKey])); w != nil && w.static {
		w.setMirror(m)
	}
}

// setMirror has the pod's status written to its mirror.
func (w *worker) setMirror(m *corev1.Pod) {
	w.mu.Lock()
	w.mirror = m
	w.mu.Unlock()
	w.send(pod.Tick{})
}

// lastStatus that was made; nil if none, and nobody knows of one.
func (w *worker) lastStatus() *corev1.PodStatus {
	if !w.static {
		return w.writer.Last(w.uid)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.made == nil && w.mirror != nil {
		return &w.mirror.Status
	}
	return w.made
}

// publish has a pod's status written: of a static pod, to its mirror.
func (w *worker) publish(p *corev1.Pod, st *corev1.PodStatus) {
	if !w.static {
		w.writer.Set(p, st)
		return
	}
	w.mu.Lock()
	w.made = st
	m := w.mirror
	w.mu.Unlock()
	if m != nil {
		// It observes no generation: what runs is the file, and its mirror is made anew when that changes.
		w.writer.Set(m, st)
	}
}
