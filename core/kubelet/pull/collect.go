// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
)

// Limits say when images go that nothing uses.
type Limits struct {
	// High is the percentage of the disk above which they go, Low the one at
	// which it stops (85 and 80 if zero).
	High, Low uint64
	// MinAge is how long an image stays after it was first seen (2 minutes if zero).
	MinAge time.Duration
	// MaxAge is how long an image may be unused before it goes, however much room there is; it counts from when it was
	// first seen at the earliest. Zero: for ever.
	MaxAge time.Duration
}

// Collector removes images that nothing uses when the disk fills up, those unused
// longest first, and those that have not been used for too long.
type Collector struct {
	Limits
	// Images of the node.
	Images engine.Images
	// InUse answers the IDs of the images that containers use.
	InUse func(ctx context.Context) (map[string]bool, error)
	// Disk answers how much of the disk is used.
	Disk func(ctx context.Context) (used, total uint64, err error)

	seen map[string]sighting
}

type sighting struct{ first, used time.Time }

// Collect looks at the disk once, and answers the images that it removed.
func (c *Collector) Collect(ctx context.Context, now time.Time) (removed []string, err error) {
	high, low := orDefault(c.High, 85), orDefault(c.Low, 80)
	list, err := c.look(ctx, now)
	if err != nil {
		return nil, err
	}
	aged, agedErr := c.removeAged(ctx, now, list)
	defer func() { removed, err = append(aged, removed...), errors.Join(agedErr, err) }()
	used, total, err := c.Disk(ctx)
	if err != nil || total == 0 || used*100/total < high {
		return nil, err
	}
	target := total / 100 * low
	removed, freed, err := c.remove(ctx, now, list, used-min(used, target))
	if left := used - min(used, freed); left > target {
		err = errors.Join(err, fmt.Errorf("the disk is %d%% full and all images that may go are gone: %d bytes are still too many", left*100/total, left-target))
	}
	return removed, err
}

// removeAged removes images that have not been used for too long.
func (c *Collector) removeAged(ctx context.Context, now time.Time, list []*cri.Image) ([]string, error) {
	if c.MaxAge <= 0 {
		return nil, nil
	}
	aged := slices.DeleteFunc(slices.Clone(list), func(img *cri.Image) bool {
		s := c.seen[img.Id]
		last := s.used
		if last.Before(s.first) {
			last = s.first
		}
		return now.Sub(last) <= c.MaxAge
	})
	removed, _, err := c.remove(ctx, now, aged, math.MaxUint64)
	return removed, err
}

// RemoveUnused removes all images that may go, however full the disk is: the node is short of it.
func (c *Collector) RemoveUnused(ctx context.Context, now time.Time) (removed []string, err error) {
	list, err := c.look(ctx, now)
	if err != nil {
		return nil, err
	}
	removed, _, err = c.remove(ctx, now, list, math.MaxUint64)
	return removed, err
}

// remove images that nothing uses, in their order, until so many bytes are free.
func (c *Collector) remove(
	ctx context.Context,
	now time.Time,
	list []*cri.Image,
	enough uint64,
) (removed []string, freed uint64, err error) {
	minAge := c.MinAge
	if minAge == 0 {
		minAge = 2 * time.Minute
	}
	var errs []error
	for _, img := range list {
		if freed >= enough {
			break
		}
		s, there := c.seen[img.Id]
		if !there || s.used.Equal(now) || now.Sub(s.first) < minAge || img.Pinned {
			continue
		}
		if err := c.Images.RemoveImage(ctx, &cri.ImageSpec{Image: img.Id}); err != nil {
			errs = append(errs, fmt.Errorf("remove image %s: %w", img.Id, err))
			continue
		}
		delete(c.seen, img.Id)
		removed = append(removed, img.Id)
		freed += img.Size
	}
	return removed, freed, errors.Join(errs...)
}

func orDefault(n, def uint64) uint64 {
	if n == 0 {
		return def
	}
	return n
}

// look notes which images are there and used, and answers them, those unused longest first.
func (c *Collector) look(ctx context.Context, now time.Time) ([]*cri.Image, error) {
	list, err := c.Images.ListImages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	inUse, err := c.InUse(ctx)
	if err != nil {
		return nil, fmt.Errorf("see which images are used: %w", err)
	}
	seen := make(map[string]sighting, len(list))
	for _, img := range list {
		s, ok := c.seen[img.Id]
		if !ok {
			s.first = now
		}
		if inUse[img.Id] {
			s.used = now
		}
		seen[img.Id] = s
	}
	c.seen = seen
	sort.Slice(list, func(i, j int) bool {
		a, b := seen[list[i].Id], seen[list[j].Id]
		if !a.used.Equal(b.used) {
			return a.used.Before(b.used)
		}
		return a.first.Before(b.first)
	})
	return list, nil
}
