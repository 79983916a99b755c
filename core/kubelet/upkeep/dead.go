// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/fromcri"
)

// removeDead removes containers that have ended and that nobody needs but who reads their logs: of pods that run the
// predecessors of others, of pods that have ended all. It reports whether there was something to remove.
func (k *Keeper) removeDead(ctx context.Context) bool {
	list, err := k.cfg.Engine.ListContainers(ctx)
	if err != nil {
		k.cfg.Logger.WarnContext(ctx, "the disk is short, and which containers have ended cannot be seen", "error", err)
		return false
	}
	living, over := map[types.UID]bool{}, map[types.UID]bool{}
	for _, p := range k.cfg.Pods.Running() {
		living[p.UID] = true
	}
	for _, p := range k.cfg.Pods.Ended() {
		over[p.UID] = true
	}
	removed := 0
	for _, id := range superfluous(list, living, over) {
		if err := k.cfg.Engine.RemoveContainer(ctx, id); err != nil {
			if ctx.Err() == nil {
				k.cfg.Logger.WarnContext(ctx, "a container that has ended cannot be removed", "container", id, "error", err)
			}
			continue
		}
		removed++
	}
	if removed > 0 {
		k.cfg.Logger.InfoContext(ctx, "containers that have ended were removed: the disk is short", "containers", removed)
	}
	return removed > 0
}

// superfluous containers have ended, and are of pods that are over, or of living ones that have a newer container of that
// name. The newest of a living pod is what its status and its next start are made of. Pods of which nothing is
// known, and those that are being deleted, are somebody else's to clear away.
func superfluous(list []*cri.Container, living, over map[types.UID]bool) (out []string) {
	type slot struct {
		pod  types.UID
		name string
	}
	of := func(c *cri.Container) slot { return slot{fromcri.UID(c.GetLabels()), c.GetMetadata().GetName()} }
	newest := map[slot]*cri.Container{}
	for _, c := range list {
		if n := newest[of(c)]; n == nil || newer(c, n) {
			newest[of(c)] = c
		}
	}
	for _, c := range list {
		s := of(c)
		if c.GetState() == cri.ContainerState_CONTAINER_EXITED && (over[s.pod] || living[s.pod] && newest[s] != c) {
			out = append(out, c.GetId())
		}
	}
	return out
}

func newer(a, b *cri.Container) bool {
	if x, y := a.GetMetadata().GetAttempt(), b.GetMetadata().GetAttempt(); x != y {
		return x > y
	}
	return a.GetCreatedAt() > b.GetCreatedAt()
}
