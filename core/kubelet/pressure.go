// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/evict"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// limits is an optional power of Volumes: the pods whose volumes grew too large.
type limits interface {
	Exceeded(ctx context.Context) map[types.UID]string
}

// relieve evicts pods that took more local storage than they may, and, while the
// node is short of something, one pod at a time.
func (k *Kubelet) relieve(ctx context.Context) {
	if l, ok := k.cfg.Volumes.(limits); ok {
		for uid, msg := range l.Exceeded(ctx) {
			k.evict(uid, msg)
		}
	}
	facts, err := k.cfg.Host.Facts(ctx)
	if err != nil || len(facts.Short) == 0 || k.evicting() {
		return
	}
	usage, err := k.usage(ctx)
	if err != nil {
		k.log.WarnContext(ctx, "the node is short of something, and what pods use of it cannot be seen", "error", err)
		return
	}
	for _, s := range facts.Short {
		if c := evict.Choose(evict.Shortage(s), usage); c != nil {
			k.evict(c.Pod.UID, c.Message)
			return
		}
	}
}

// evicting tells whether a pod that was evicted has not yet ended: what it gives
// back is to be seen before another goes.
func (k *Kubelet) evicting() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.workers {
		if w.evicting() {
			return true
		}
	}
	return false
}

func (k *Kubelet) evict(uid types.UID, message string) {
	w := k.worker(uid)
	if w == nil {
		return
	}
	p, first := w.beginEviction()
	if !first || p.DeletionTimestamp != nil {
		return
	}
	k.event(p, "", corev1.EventTypeWarning, evict.Reason, message)
	grace := int64(1)
	w.send(pod.Evicted{Reason: evict.Reason, Message: message, Grace: &grace})
}

// usage of memory by the pods that run. Where it is the disk that is short, who
// uses most memory goes just as well as any: usage of the disk is not measured.
func (k *Kubelet) usage(ctx context.Context) ([]evict.Usage, error) {
	list, err := k.cfg.Engine.Stats(ctx)
	if err != nil {
		return nil, err
	}
	byUID := map[types.UID]*cri.PodSandboxStats{}
	for _, s := range list {
		byUID[types.UID(s.GetAttributes().GetMetadata().GetUid())] = s
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []evict.Usage
	for uid, w := range k.workers {
		p, ended := w.occupant()
		if ended || p.DeletionTimestamp != nil {
			continue
		}
		u := evict.Usage{Pod: p, Containers: map[string]int64{}}
		for _, c := range byUID[uid].GetLinux().GetContainers() {
			u.Containers[c.GetAttributes().GetMetadata().GetName()] = int64(c.GetMemory().GetWorkingSetBytes().GetValue()) //nolint:gosec // bytes of memory
		}
		out = append(out, u)
	}
	return out, nil
}
