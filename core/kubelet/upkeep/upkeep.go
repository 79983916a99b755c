// SPDX-License-Identifier: Apache-2.0

// Package upkeep does a node's housekeeping, now and then: it keeps the logs of containers
// within bounds, removes images that nothing uses when the disk fills up or they get too old, and has pods
// evicted that took more local storage than they may, or while the node is short of
// something.
package upkeep

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/logs"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/podmetrics"
	"github.com/wasmplane/wasmplane/core/kubelet/pull"
	"github.com/wasmplane/wasmplane/core/kubelet/rounds"
)

// How often the housekeeping is done, and images are looked at.
const (
	every        = 10 * time.Second
	collectEvery = 5 * time.Minute
)

// Pods of the node.
type Pods interface {
	// Running are those that have not ended and are not being deleted.
	Running() []*corev1.Pod
	// Ended are those that have ended all of their containers, and are not being deleted.
	Ended() []*corev1.Pod
	// Logs are the files of the containers that run, by the containers' IDs.
	Logs() map[string]string
	// Evicting tells whether a pod that was evicted still has something of the node: a container, or a volume.
	Evicting() bool
	// Evict ends a pod within so many seconds, and reports whether it does; one that is being deleted, or was evicted, ends
	// anyway.
	Evict(uid types.UID, message string, grace int64) bool
}

// Config of a Keeper. All but Every, Rotation and Images are required.
type Config struct {
	Pods   Pods
	Engine engine.Engine
	Host   node.Host
	// Volumes of the pods; those that can say so tell which are on the node's disk.
	Volumes any
	// Every is how often all is looked at (10 s if zero).
	Every time.Duration
	// Rotation bounds what containers' logs take.
	Rotation logs.Rotation
	// Images says when images go that nothing uses.
	Images pull.Limits
	// Metrics count evictions; nil: nobody does.
	Metrics *podmetrics.Metrics
	Logger  *slog.Logger
}

// Keeper of one node.
type Keeper struct {
	cfg     Config
	images  *pull.Collector // nil: the host does not know its disk
	meter   meter
	evicted time.Time // when a pod had to go for the node's sake, the last time
	grace   int64     // that it was given, in seconds

	wanted   chan struct{} // somebody wants to know what pods take of the disk
	surveyed atomic.Pointer[diskusage.Pods]
}

// New makes a Keeper; Run runs it.
func New(cfg Config) *Keeper {
	if cfg.Every <= 0 {
		cfg.Every = every
	}
	k := &Keeper{cfg: cfg, wanted: make(chan struct{}, 1)}
	if d, ok := cfg.Host.(disk); ok {
		k.images = &pull.Collector{Images: cfg.Engine, Disk: d.Disk, Limits: cfg.Images, InUse: k.imagesInUse}
	}
	return k
}

// disk is an optional power of a Host: how full the disk is on which images are.
type disk interface {
	Disk(ctx context.Context) (used, total uint64, err error)
}

// Run does the housekeeping until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	r := rounds.New(2)
	k.Join(ctx, r)
	return r.Run(ctx)
}

// Join is Run by rounds. Logs are looked at on their own: to measure what pods hold may take a while.
func (k *Keeper) Join(ctx context.Context, r *rounds.Rounds) {
	var collected time.Time
	logs := r.Add("kubelet: logs", k.cfg.Every, func(context.Context) time.Duration {
		k.rotateLogs(ctx, time.Now())
		return k.cfg.Every
	})
	room := r.Add("kubelet: upkeep", k.cfg.Every, func(context.Context) time.Duration {
		now := time.Now()
		k.relieve(ctx, now)
		if k.images != nil && now.Sub(collected) >= collectEvery {
			collected = now
			k.collect(ctx, now)
		}
		return k.cfg.Every
	})
	context.AfterFunc(ctx, func() { logs.Stop(); room.Stop() })
	if k.images != nil { // nobody asks a host without a disk
		r.Go("kubelet: surveys", func() { k.surveys(ctx) })
	}
}

func (k *Keeper) collect(ctx context.Context, now time.Time) {
	removed, err := k.images.Collect(ctx, now)
	k.reportImages(ctx, "images that nothing uses were removed: the disk was filling up, or they were too old", removed, err)
}

func (k *Keeper) reportImages(ctx context.Context, message string, removed []string, err error) {
	if len(removed) > 0 {
		k.cfg.Logger.InfoContext(ctx, message, "images", len(removed))
	}
	if err != nil && ctx.Err() == nil {
		k.cfg.Logger.WarnContext(ctx, "images cannot be removed as they should", "error", err)
	}
}

// atOnce is the grace of pods that are killed, in seconds.
const atOnce = 1

// evict a pod because of a signal, by upstream's name, and report whether it goes for that. Of one that is to go already
// nothing more is counted.
func (k *Keeper) evict(uid types.UID, signal, message string, grace int64) bool {
	if !k.cfg.Pods.Evict(uid, message, grace) {
		return false
	}
	k.cfg.Metrics.Evicted(signal)
	return true
}

func (k *Keeper) imagesInUse(ctx context.Context) (map[string]bool, error) {
	list, err := k.cfg.Engine.ListContainers(ctx)
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, c := range list {
		used[c.ImageId], used[c.ImageRef], used[c.GetImage().GetImage()] = true, true, true
	}
	return used, nil
}

// rotateLogs looks at the logs of the containers that run.
func (k *Keeper) rotateLogs(ctx context.Context, now time.Time) {
	for id, path := range k.cfg.Pods.Logs() {
		if ctx.Err() != nil {
			return
		}
		err := k.cfg.Rotation.Rotate(ctx, path, now, func(ctx context.Context) error { return k.cfg.Engine.ReopenLog(ctx, id) })
		if err != nil && ctx.Err() == nil {
			k.cfg.Logger.WarnContext(ctx, "a container's log cannot be rotated", "path", path, "container", id, "error", err)
		}
	}
}
