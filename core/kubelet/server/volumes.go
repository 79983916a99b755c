// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
)

// volumeMetrics are upstream's, one of each for a claim that pods of the node use.
var volumeMetrics = []struct {
	name, help string
	of         func(*diskusage.FileSystem) uint64
}{
	{"available_bytes", "Number of available bytes in the volume", func(u *diskusage.FileSystem) uint64 { return u.BytesFree }},
	{"capacity_bytes", "Capacity in bytes of the volume", func(u *diskusage.FileSystem) uint64 { return u.Bytes }},
	{"inodes", "Maximum number of inodes in the volume", func(u *diskusage.FileSystem) uint64 { return u.Inodes }},
	{"inodes_free", "Number of free inodes in the volume", func(u *diskusage.FileSystem) uint64 { return u.InodesFree }},
	{"inodes_used", "Number of used inodes in the volume", func(u *diskusage.FileSystem) uint64 { return u.InodesUsed }},
	{"used_bytes", "Number of used bytes in the volume", func(u *diskusage.FileSystem) uint64 { return u.BytesUsed }},
}

// claimed is how full the volume of a claim is.
type claimed struct {
	namespace, claim string
	diskusage.FileSystem
}

// claims measures the volumes of a node's pods, each claim once.
func claims(ctx context.Context, n Node) []claimed {
	meter, ok := n.(VolumeMeter)
	if !ok {
		return nil
	}
	var mu sync.Mutex
	var all []claimed
	var wg sync.WaitGroup // of slow drivers, the slowest counts
	for _, p := range n.Pods() {
		if len(p.Spec.Volumes) == 0 {
			continue
		}
		wg.Go(func() {
			for _, m := range meter.VolumeUsage(ctx, types.UID(p.UID)) {
				if m.Claim == "" {
					continue
				}
				mu.Lock()
				all = append(all, claimed{p.Namespace, m.Claim, m.FileSystem})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.SortFunc(all, func(a, b claimed) int {
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.claim, b.claim))
	})
	return slices.CompactFunc(all, func(a, b claimed) bool { return a.namespace == b.namespace && a.claim == b.claim })
}

// writeVolumes writes the metrics of claims; nothing where there are none.
func writeVolumes(b *strings.Builder, all []claimed) {
	if len(all) == 0 {
		return
	}
	for _, m := range volumeMetrics {
		name := "kubelet_volume_stats_" + m.name
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s gauge\n", name, m.help, name)
		for i := range all {
			fmt.Fprintf(b, "%s{namespace=%q,persistentvolumeclaim=%q} %d\n", name, all[i].namespace, all[i].claim, m.of(&all[i].FileSystem))
		}
	}
}
