// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"time"

	"github.com/wasmplane/wasmplane/core/kubelet/pull"
)

// How often the node's housekeeping is done.
const (
	upkeepEvery  = 10 * time.Second
	collectEvery = 5 * time.Minute
)

// disk is an optional power of a Host: how full the disk is on which images are.
type disk interface {
	Disk(ctx context.Context) (used, total uint64, err error)
}

// upkeep keeps logs and images within bounds until ctx ends.
func (k *Kubelet) upkeep(ctx context.Context) error {
	t := time.NewTicker(k.cfg.Upkeep)
	defer t.Stop()
	collect := k.collector()
	var collected time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-t.C:
			k.rotateLogs(ctx, now)
			k.relieve(ctx)
			if collect != nil && now.Sub(collected) >= collectEvery {
				collected = now
				removed, err := collect.Collect(ctx, now)
				if len(removed) > 0 {
					k.log.InfoContext(ctx, "images that nothing uses were removed: the disk was filling up", "images", len(removed))
				}
				if err != nil && ctx.Err() == nil {
					k.log.WarnContext(ctx, "images cannot be removed as they should", "error", err)
				}
			}
		}
	}
}

func (k *Kubelet) collector() *pull.Collector {
	d, ok := k.cfg.Host.(disk)
	if !ok {
		return nil
	}
	return &pull.Collector{
		Images: k.cfg.Engine, Disk: d.Disk, High: k.cfg.ImagesHigh, Low: k.cfg.ImagesLow,
		InUse: func(ctx context.Context) (map[string]bool, error) {
			list, err := k.cfg.Engine.ListContainers(ctx)
			if err != nil {
				return nil, err
			}
			used := map[string]bool{}
			for _, c := range list {
				used[c.ImageId], used[c.ImageRef], used[c.GetImage().GetImage()] = true, true, true
			}
			return used, nil
		},
	}
}

// rotateLogs looks at the logs of the containers that run.
func (k *Kubelet) rotateLogs(ctx context.Context, now time.Time) {
	k.mu.Lock()
	workers := make([]*worker, 0, len(k.workers))
	for _, w := range k.workers {
		workers = append(workers, w)
	}
	k.mu.Unlock()
	for _, w := range workers {
		for id, path := range w.logFiles() {
			if ctx.Err() != nil {
				return
			}
			err := k.cfg.LogRotation.Rotate(ctx, path, now, func(ctx context.Context) error { return k.cfg.Engine.ReopenLog(ctx, id) })
			if err != nil && ctx.Err() == nil {
				k.log.WarnContext(ctx, "a container's log cannot be rotated", "uid", w.uid, "container", id, "error", err)
			}
		}
	}
}
