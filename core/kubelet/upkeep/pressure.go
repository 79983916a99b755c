// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/evict"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/threshold"
)

// patience is how long the end of an evicted pod is waited for before another goes, beyond the time that it was given.
const patience = 2 * time.Minute

// signals by what is short.
var signals = map[corev1.ResourceName]string{
	corev1.ResourceMemory: threshold.MemoryAvailable, corev1.ResourceEphemeralStorage: threshold.DiskAvailable,
	node.Inodes: threshold.InodesFree, node.PIDs: threshold.PIDsAvailable,
}

// relieve evicts pods that took more local storage than they may, and, while the
// node is short of something, one pod at a time: what one gives back is to be seen
// before another goes. Where the disk is short, containers that have ended and images that nothing uses go first.
func (k *Keeper) relieve(ctx context.Context, now time.Time) {
	k.bound(ctx)
	// Asked before the facts: those of a moment at which a pod had not ended yet say nothing of what it gives back.
	ending := k.cfg.Pods.Evicting()
	facts, err := k.cfg.Host.Facts(ctx)
	if err != nil {
		return
	}
	for _, s := range facts.Short {
		if ending && k.waits(now, s) {
			continue
		}
		if ofDisk(s.Resource) && (k.removeDead(ctx) || k.images != nil && k.removeImages(ctx, now)) {
			return
		}
		usage, err := k.usage(ctx, s.Resource)
		if err != nil {
			k.cfg.Logger.WarnContext(ctx, "the node is short of a resource, and what pods use of it cannot be seen",
				"resource", s.Resource, "error", err)
			return
		}
		for c := evict.Choose(s, usage); c != nil; c = evict.Choose(s, usage) {
			if n := grace(s, c.Pod); k.evict(c.Pod.UID, signals[s.Resource], c.Message, n) {
				k.evicted, k.grace = now, n
				return
			}
			// It goes already, and is too slow: another has to.
			usage = slices.DeleteFunc(usage, func(u evict.Usage) bool { return u.Pod.UID == c.Pod.UID })
		}
	}
}

// grace of a pod, in seconds: its own, as far as the shortage has time for it.
func grace(s node.Short, p *corev1.Pod) int64 {
	n := int64(s.Grace / time.Second)
	if own := p.Spec.TerminationGracePeriodSeconds; own != nil {
		n = min(n, *own)
	}
	return max(n, atOnce)
}

// ofDisk tells resources that a file system has.
func ofDisk(name corev1.ResourceName) bool {
	return name == corev1.ResourceEphemeralStorage || name == node.Inodes
}

// waits tells whether an evicted pod that has not ended is waited for. One that does not end does not keep the others
// for ever, and a shortage that has no time does not wait for one that was given some.
func (k *Keeper) waits(now time.Time, s node.Short) bool {
	if s.Grace == 0 && k.grace > atOnce {
		return false
	}
	return now.Sub(k.evicted) < patience+time.Duration(k.grace-atOnce)*time.Second
}

// removeImages makes room on the disk, and reports whether there was something to remove.
func (k *Keeper) removeImages(ctx context.Context, now time.Time) bool {
	removed, err := k.images.RemoveUnused(ctx, now)
	k.reportImages(ctx, "images that nothing uses were removed: the disk is short", removed, err)
	return len(removed) > 0
}

// usage of a resource by the pods that run.
func (k *Keeper) usage(ctx context.Context, name corev1.ResourceName) ([]evict.Usage, error) {
	byUID, err := k.stats(ctx)
	if err != nil {
		return nil, err
	}
	var logs map[string]string
	if ofDisk(name) {
		k.meter.renew()
		logs = k.cfg.Pods.Logs()
	}
	var out []evict.Usage
	for _, p := range k.cfg.Pods.Running() {
		s := byUID[p.UID]
		switch name {
		case corev1.ResourceEphemeralStorage:
			out = append(out, k.disk(ctx, p, s, logs, bytes))
		case node.Inodes:
			out = append(out, k.disk(ctx, p, s, logs, inodes))
		case node.PIDs:
			n := s.GetLinux().GetProcess().GetProcessCount().GetValue()
			out = append(out, evict.Usage{Pod: p, Shared: int64(n)}) //nolint:gosec // a count of processes
		default:
			out = append(out, memory(p, s))
		}
	}
	return out, nil
}

func memory(p *corev1.Pod, s *cri.PodSandboxStats) evict.Usage {
	u := evict.Usage{Pod: p, Containers: map[string]int64{}}
	for _, c := range s.GetLinux().GetContainers() {
		u.Containers[c.GetAttributes().GetMetadata().GetName()] = int64(c.GetMemory().GetWorkingSetBytes().GetValue()) //nolint:gosec // bytes of memory
	}
	return u
}
