// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
	"github.com/wasmplane/wasmplane/core/kubelet/evict"
	"github.com/wasmplane/wasmplane/core/kubelet/volume"
)

// onDisk is an optional power of Volumes: a pod's volumes that are directories of the node's disk.
type onDisk interface {
	OnDisk(p *corev1.Pod) []volume.Local
}

// volumes of a pod on the node's disk.
func (k *Keeper) volumes(p *corev1.Pod) []volume.Local {
	if v, ok := k.cfg.Volumes.(onDisk); ok {
		return v.OnDisk(p)
	}
	return nil
}

// bound evicts pods that took more of the disk than they may. Only what has a limit is measured.
func (k *Keeper) bound(ctx context.Context) {
	defer k.meter.sweep()
	var limited []*corev1.Pod
	for _, p := range k.cfg.Pods.Running() {
		if msg := k.volumeOver(ctx, p); msg != "" {
			k.evict(p.UID, "emptydirfs.limit", msg, atOnce)
		} else if _, ok := evict.StorageLimit(p); ok && !evict.Critical(p) {
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
	logs := k.cfg.Pods.Logs()
	for _, p := range limited {
		if msg := evict.OverStorage(k.disk(ctx, p, stats[p.UID], logs, bytes)); msg != "" {
			k.evict(p.UID, "ephemeralpodfs.limit", msg, atOnce)
		}
	}
}

// volumeOver says which volume of a pod holds more than its limit; empty if none does.
func (k *Keeper) volumeOver(ctx context.Context, p *corev1.Pod) string {
	for _, v := range k.volumes(p) {
		if v.Limit != nil && k.meter.of(ctx, v.Dir).Bytes > v.Limit.Value() {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, v.Limit.String())
		}
	}
	return ""
}

func bytes(u diskusage.Usage) int64  { return u.Bytes }
func inodes(u diskusage.Usage) int64 { return u.Inodes }

// disk is what a pod takes of the node's: its containers with their files and logs, and its volumes.
func (k *Keeper) disk(
	ctx context.Context,
	p *corev1.Pod,
	s *cri.PodSandboxStats,
	logs map[string]string,
	of func(diskusage.Usage) int64,
) evict.Usage {
	out := evict.Usage{Pod: p, Containers: map[string]int64{}}
	for _, c := range s.GetLinux().GetContainers() {
		used := diskusage.OfLayer(c.GetWritableLayer())
		if file := logs[c.GetAttributes().GetId()]; file != "" {
			used = used.Plus(k.meter.of(ctx, filepath.Dir(file)))
		}
		out.Containers[c.GetAttributes().GetMetadata().GetName()] += of(used)
	}
	for _, v := range k.volumes(p) {
		out.Shared += of(k.meter.of(ctx, v.Dir))
	}
	return out
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
