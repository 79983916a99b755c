// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
)

// DiskMeter is an optional power of a Node: how full its disk is, and what directories of pods take of it. They are measured
// because somebody asked: who asks first learns nothing of them, and pods is nil. It reports false where there is no disk.
type DiskMeter interface {
	Disk(ctx context.Context) (fs diskusage.FileSystem, pods *diskusage.Pods, ok bool)
}

// disk is a node's, while a summary of it is made.
type disk struct {
	fs   diskusage.FileSystem
	pods *diskusage.Pods
	at   time.Time
}

// diskOf a node; nil where it has none.
func diskOf(ctx context.Context, n Node) *disk {
	m, ok := n.(DiskMeter)
	if !ok {
		return nil
	}
	fs, pods, ok := m.Disk(ctx)
	if !ok {
		return nil
	}
	return &disk{fs, pods, time.Now()}
}

// fsStats is how full a file system is, in the summary's words.
func fsStats(at time.Time, fs diskusage.FileSystem) *stats.FsStats {
	return &stats.FsStats{
		Time: metav1.NewTime(at), AvailableBytes: &fs.BytesFree, CapacityBytes: &fs.Bytes, UsedBytes: &fs.BytesUsed,
		InodesFree: &fs.InodesFree, Inodes: &fs.Inodes, InodesUsed: &fs.InodesUsed,
	}
}

// whole is the file system itself.
func (d *disk) whole() *stats.FsStats { return fsStats(d.at, d.fs) }

// part is what somebody takes of it.
func (d *disk) part(at time.Time, u diskusage.Usage) *stats.FsStats {
	fs := d.fs
	fs.BytesUsed, fs.InodesUsed = uint64(u.Bytes), uint64(u.Inodes) //nolint:gosec // counts, never negative
	return fsStats(at, fs)
}

// describe says what a pod and its containers take of the disk.
func (d *disk) describe(p *stats.PodStats, s *cri.PodSandboxStats) {
	var total diskusage.Usage
	for i, c := range s.GetLinux().GetContainers() {
		used := diskusage.OfLayer(c.GetWritableLayer())
		p.Containers[i].Rootfs = d.part(time.Unix(0, c.GetWritableLayer().GetTimestamp()), used)
		total = total.Plus(used)
		if d.pods == nil {
			continue
		}
		if logs, ok := d.pods.Logs[c.GetAttributes().GetId()]; ok {
			p.Containers[i].Logs = d.part(d.pods.At, logs)
			total = total.Plus(logs)
		}
	}
	if d.pods == nil {
		return
	}
	volumes, ok := d.pods.Volumes[types.UID(p.PodRef.UID)]
	if !ok {
		return // it is younger
	}
	for _, name := range slices.Sorted(maps.Keys(volumes)) {
		u := volumes[name]
		p.VolumeStats = append(p.VolumeStats, stats.VolumeStats{Name: name, FsStats: *d.part(d.pods.At, u)})
		total = total.Plus(u)
	}
	p.EphemeralStorage = d.part(d.pods.At, total)
}
