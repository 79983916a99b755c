// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/evict"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/threshold"
)

// patience is how long the end of an evicted pod is waited for before another goes.
const patience = 2 * time.Minute

// signals by what is short.
var signals = map[corev1.ResourceName]string{
	corev1.ResourceMemory: threshold.MemoryAvailable, corev1.ResourceEphemeralStorage: threshold.DiskAvailable,
	node.Inodes: threshold.InodesFree, node.PIDs: threshold.PIDsAvailable,
}

// relieve evicts pods that took more local storage than they may, and, while the
// node is short of something, one pod at a time: what one gives back is to be seen
// before another goes. Where the disk is short, images that nothing uses go first.
func (k *Keeper) relieve(ctx context.Context, now time.Time) {
	k.bound(ctx)
	facts, err := k.cfg.Host.Facts(ctx)
	if err != nil || len(facts.Short) == 0 || k.waits(now) {
		return
	}
	for _, s := range facts.Short {
		if ofDisk(s.Resource) && k.images != nil && k.removeImages(ctx, now) {
			return
		}
		usage, err := k.usage(ctx, s.Resource)
		if err != nil {
			k.cfg.Logger.WarnContext(ctx, "the node is short of a resource, and what pods use of it cannot be seen",
				"resource", s.Resource, "error", err)
			return
		}
		if c := evict.Choose(evict.Shortage(s), usage); c != nil {
			k.evicted = now
			k.evict(c.Pod.UID, signals[s.Resource], c.Message)
			return
		}
	}
}

// ofDisk tells resources that a file system has.
func ofDisk(name corev1.ResourceName) bool {
	return name == corev1.ResourceEphemeralStorage || name == node.Inodes
}

// waits tells whether an evicted pod has not yet given back what it had. One that does not end does not keep the others
// for ever.
func (k *Keeper) waits(now time.Time) bool {
	return now.Sub(k.evicted) < patience && k.cfg.Pods.Evicting()
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
