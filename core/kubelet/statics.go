// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/static"
	"github.com/wasmplane/wasmplane/core/run"
)

// StaticPods are the pods that a node runs from files.
type StaticPods interface {
	// Run calls changed with all pods, at first and when they have changed, and failed
	// with what is wrong with a file, until ctx ends.
	Run(ctx context.Context, changed func([]*corev1.Pod), failed func(error)) error
}

// statics are the pods of files and their mirrors; guarded by the Kubelet's lock.
type statics struct {
	begun bool
	// wanted are the pods of the files; nil before these have been read.
	wanted map[types.NamespacedName]*corev1.Pod
	// mirrors that the API has.
	mirrors map[types.NamespacedName]*corev1.Pod
	kick    chan struct{}
	// changed has the pods looked at again, read what the runtime has beyond them.
	changed, read chan struct{}
}

func newStatics() statics {
	return statics{
		mirrors: map[types.NamespacedName]*corev1.Pod{}, kick: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		read: make(chan struct{}, 1),
	}
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
		k.remove(ctx, uid, snap)
	}
}

// staticFailed says what is wrong with a file, to who reads the log and to who looks at the node.
func (k *Kubelet) staticFailed(ctx context.Context, err error) {
	k.log.WarnContext(ctx, "a static pod's file is not as it should be; what ran from it goes on", "error", err)
	k.rec.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: k.cfg.NodeName, UID: types.UID(k.cfg.NodeName)},
		corev1.EventTypeWarning, "InvalidStaticPod", err.Error())
}

// staticSync has static pods and mirrors looked at again.
func (k *Kubelet) staticSync() {
	nudge(k.static.changed)
	nudge(k.static.kick)
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
	}
}

// mirrorChanged takes the API's mirror of a static pod.
func (k *Kubelet) mirrorChanged(m *corev1.Pod) {
	k.mu.Lock()
	k.static.mirrors[static.Key(m)] = m
	w := k.workers[types.UID(m.Annotations[corev1.MirrorPodAnnotationKey])]
	k.mu.Unlock()
	if w != nil && w.static && m.DeletionTimestamp == nil {
		w.setMirror(m)
	}
	nudge(k.static.kick)
}

func (k *Kubelet) mirrorGone(m *corev1.Pod) {
	k.writer.Forget(m.UID)
	k.dropMirror(m)
	nudge(k.static.kick)
}

func (k *Kubelet) dropMirror(m *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if have := k.static.mirrors[static.Key(m)]; have != nil && have.UID == m.UID {
		delete(k.static.mirrors, static.Key(m))
	}
}

// keepMirrors keeps the API's mirrors of static pods as they should be until ctx ends.
func (k *Kubelet) keepMirrors(ctx context.Context) error {
	if !run.Await(ctx, k.ready) {
		return nil
	}
	retry := run.Backoff{First: 100 * time.Millisecond, Longest: 10 * time.Second}
	for {
		if err := k.syncMirrors(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			wait := retry.Next()
			k.log.WarnContext(ctx, "static pods cannot be shown in the API; trying again", "error", err, "retryIn", wait)
			if !run.Sleep(ctx, wait) {
				return nil
			}
			continue
		}
		retry.Reset()
		select {
		case <-ctx.Done():
			return nil
		case <-k.static.kick:
		}
	}
}

// syncMirrors deletes and creates mirrors; one that fails keeps up no other.
func (k *Kubelet) syncMirrors(ctx context.Context) error {
	pods, mirrors := map[types.NamespacedName]*corev1.Pod{}, map[types.NamespacedName]*corev1.Pod{}
	k.mu.Lock()
	if k.cfg.Static != nil && k.static.wanted == nil {
		k.mu.Unlock()
		return nil // the files have not been read
	}
	for _, w := range k.workers {
		if w.static { // also one that ends: its mirror shows that
			p := w.identity()
			pods[static.Key(p)] = p
		}
	}
	for key, m := range k.static.mirrors {
		mirrors[key] = m
	}
	k.mu.Unlock()
	var failed []error
	for plan := static.PlanMirrors(pods, mirrors); ; plan = static.PlanMirrors(pods, mirrors) {
		for _, m := range plan.Delete {
			delete(mirrors, static.Key(m))
			failed = append(failed, k.deleteMirror(ctx, m))
		}
		for _, p := range plan.Create {
			delete(pods, static.Key(p))
			failed = append(failed, k.createMirror(ctx, p))
		}
		if len(plan.Delete) == 0 {
			return errors.Join(failed...)
		}
	}
}

func (k *Kubelet) deleteMirror(ctx context.Context, m *corev1.Pod) error {
	err := k.cfg.Client.CoreV1().Pods(m.Namespace).Delete(ctx, m.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &m.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete mirror pod %s/%s: %w", m.Namespace, m.Name, err)
	}
	k.dropMirror(m)
	return nil
}

func (k *Kubelet) createMirror(ctx context.Context, p *corev1.Pod) error {
	want := static.Mirror(p, k.node.UID())
	got, err := k.cfg.Client.CoreV1().Pods(want.Namespace).Create(ctx, want, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create mirror pod %s/%s: %w", want.Namespace, want.Name, err)
	}
	k.mu.Lock()
	k.static.mirrors[static.Key(got)] = got
	k.mu.Unlock()
	if w := k.worker(p.UID); w != nil {
		w.setMirror(got)
	}
	return nil
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
		shown := st.DeepCopy()
		shown.ObservedGeneration = m.Generation
		w.writer.Set(m, shown)
	}
}
