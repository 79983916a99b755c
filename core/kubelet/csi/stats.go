// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"sync"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
	"github.com/wasmplane/wasmplane/core/kubelet/volume"
)

const (
	// statsFor is how long what a driver said of a volume is good; upstream asks as often.
	statsFor = time.Minute
	// statsWithin is how long somebody who asks for statistics waits for a driver.
	statsWithin = 2 * time.Second
)

// measured is what drivers said last, by the place of the volume.
type measured struct {
	mu   sync.Mutex
	last map[string]measurement
}

type measurement struct {
	diskusage.FileSystem
	ok bool
	at time.Time
}

func (m *measured) forget(dir string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.last, dir)
}

// begin answers what is known, and whether the driver is to be asked: by whoever comes
// first, and not again while it does not answer.
func (m *measured) begin(dir string, now time.Time) (measurement, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have, known := m.last[dir]
	if known && now.Sub(have.at) < statsFor {
		return have, false
	}
	if m.last == nil {
		m.last = map[string]measurement{}
	}
	have.at = now
	m.last[dir] = have
	return have, true
}

func (m *measured) put(dir string, got measurement) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, there := m.last[dir]; there { // not forgotten meanwhile
		m.last[dir] = got
	}
}

// Usage implements volume.Measurer by what the driver says, where it can.
func (n *Node) Usage(ctx context.Context, r volume.Request) (diskusage.FileSystem, bool) {
	have, ask := n.stats.begin(r.Dir, time.Now())
	if !ask {
		return have.FileSystem, have.ok
	}
	got, err := n.measure(ctx, r)
	if err != nil {
		n.cfg.Logger.DebugContext(ctx, "how full a volume is cannot be found out", "path", r.Dir, "error", err)
		return have.FileSystem, have.ok
	}
	got.at = time.Now()
	n.stats.put(r.Dir, got)
	return got.FileSystem, got.ok
}

func (n *Node) measure(ctx context.Context, r volume.Request) (measurement, error) {
	ctx, cancel := context.WithTimeout(ctx, statsWithin)
	defer cancel()
	have, err := readRecord(r.Dir)
	if err != nil || have == nil {
		return measurement{}, err
	}
	d, err := n.registry.driver(have.Driver)
	if err != nil {
		return measurement{}, err
	}
	can, err := d.powers(ctx)
	if err != nil || !can.has(spec.NodeServiceCapability_RPC_GET_VOLUME_STATS) {
		return measurement{}, err
	}
	req := &spec.NodeGetVolumeStatsRequest{VolumeId: have.Handle, VolumePath: n.cfg.seen(targetPath(r.Dir))}
	if have.Lifecycle == persistent && can.has(spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		req.StagingTargetPath = n.cfg.seen(stagePath(n.cfg.stage(have.id())))
	}
	got, err := ask(ctx, d, "NodeGetVolumeStats", func(ctx context.Context, c spec.NodeClient) (*spec.NodeGetVolumeStatsResponse, error) {
		return c.NodeGetVolumeStats(ctx, req)
	})
	if err != nil {
		return measurement{}, err
	}
	m := measurement{ok: true}
	for _, u := range got.GetUsage() {
		total, used, free := amount(u.GetTotal()), amount(u.GetUsed()), amount(u.GetAvailable())
		switch u.GetUnit() {
		case spec.VolumeUsage_BYTES:
			m.Bytes, m.BytesUsed, m.BytesFree = total, used, free
		case spec.VolumeUsage_INODES:
			m.Inodes, m.InodesUsed, m.InodesFree = total, used, free
		case spec.VolumeUsage_UNKNOWN:
		}
	}
	return m, nil
}

func amount(v int64) uint64 { return uint64(max(v, 0)) } //nolint:gosec // not below zero
