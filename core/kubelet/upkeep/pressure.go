// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/evict"
)

// limits is an optional power of Volumes: the pods whose volumes grew too large.
type limits interface {
	Exceeded(ctx context.Context) map[types.UID]string
}

// relieve evicts pods that took more local storage than they may, and, while the
// node is short of something, one pod at a time: what one gives back is to be seen
// before another goes.
func (k *Keeper) relieve(ctx context.Context) {
	if l, ok := k.cfg.Volumes.(limits); ok {
		for uid, msg := range l.Exceeded(ctx) {
			k.cfg.Pods.Evict(uid, msg)
		}
	}
	k.bound(ctx)
	facts, err := k.cfg.Host.Facts(ctx)
	if err != nil || len(facts.Short) == 0 || k.cfg.Pods.Evicting() {
		return
	}
	usage, err := k.usage(ctx)
	if err != nil {
		k.cfg.Logger.WarnContext(ctx, "the node is short of something, and what pods use of it cannot be seen", "error", err)
		return
	}
	for _, s := range facts.Short {
		if c := evict.Choose(evict.Shortage(s), usage); c != nil {
			k.cfg.Pods.Evict(c.Pod.UID, c.Message)
			return
		}
	}
}

// usage of memory by the pods that run. Where it is the disk that is short, who
// uses most memory goes just as well as any: usage of the disk is not measured.
func (k *Keeper) usage(ctx context.Context) ([]evict.Usage, error) {
	byUID, err := k.stats(ctx)
	if err != nil {
		return nil, err
	}
	var out []evict.Usage
	for _, p := range k.cfg.Pods.Running() {
		u := evict.Usage{Pod: p, Containers: map[string]int64{}}
		for _, c := range byUID[p.UID].GetLinux().GetContainers() {
			name := c.GetAttributes().GetMetadata().GetName()
			u.Containers[name] = int64(c.GetMemory().GetWorkingSetBytes().GetValue()) //nolint:gosec // bytes of memory
		}
		out = append(out, u)
	}
	return out, nil
}
