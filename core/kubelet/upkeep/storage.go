// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
	"github.com/wasmplane/wasmplane/core/kubelet/evict"
)

// onDisk is an optional power of Volumes: what a pod's hold on the node's disk, in bytes.
type onDisk interface {
	OnDisk(ctx context.Context, p *corev1.Pod, enough int64) int64
}

// bound evicts pods that are beyond their limits of ephemeral storage. Only pods with limits are measured.
func (k *Keeper) bound(ctx context.Context) {
	var limited []*corev1.Pod
	for _, p := range k.cfg.Pods.Running() {
		if _, ok := evict.StorageLimit(p); ok && !evict.Critical(p) {
			limited = append(limited, p)
		}
	}
	if len(limited) == 0 {
		return
	}
	stats, err := k.stats(ctx)
	if err != nil {
		if ctx.Err() == nil {
			k.cfg.Logger.WarnContext(ctx, "pods have limits of ephemeral storage, and what they use cannot be seen", "error", err)
		}
		return
	}
	logFiles := k.cfg.Pods.Logs()
	for _, p := range limited {
		limit, _ := evict.StorageLimit(p)
		u, volumes := evict.Usage{Pod: p, Containers: map[string]int64{}}, int64(0)
		for _, c := range stats[p.UID].GetLinux().GetContainers() {
			used := int64(c.GetWritableLayer().GetUsedBytes().GetValue())
			if file := logFiles[c.GetAttributes().GetId()]; file != "" {
				used += diskusage.Of(ctx, filepath.Dir(file), limit)
			}
			u.Containers[c.GetAttributes().GetMetadata().GetName()] += used
		}
		if v, ok := k.cfg.Volumes.(onDisk); ok {
			volumes = v.OnDisk(ctx, p, limit)
		}
		if msg := evict.OverStorage(u, volumes); msg != "" {
			k.cfg.Pods.Evict(p.UID, msg)
		}
	}
}

// stats of the pods that the runtime has.
func (k *Keeper) stats(ctx context.Context) (map[types.UID]*cri.PodSandboxStats, error) {
	list, err := k.cfg.Engine.Stats(ctx)
	if err != nil {
		return nil, err
	}
	byUID := map[types.UID]*cri.PodSandboxStats{}
	for _, s := range list {
		byUID[types.UID(s.GetAttributes().GetMetadata().GetUid())] = s
	}
	return byUID, nil
}
