// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
	"github.com/wasmplane/wasmplane/core/run"
)

// surveyEvery is how often directories of all pods are measured at most, where somebody wants to know.
const surveyEvery = time.Minute

// Disk is what the logs and volumes of the pods that run took of the node's disk when it was last measured: after
// somebody had asked before, and not more than once in a minute. Who asks first gets nil, and has it measured.
func (k *Keeper) Disk() *diskusage.Pods {
	select {
	case k.wanted <- struct{}{}:
	default: // it is wanted already
	}
	return k.surveyed.Load()
}

// surveys are made until ctx ends, when they are wanted.
func (k *Keeper) surveys(ctx context.Context) {
	var m meter // not the one of evictions, which nobody else's questions should make slower
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wanted:
		}
		k.surveyed.Store(k.survey(ctx, &m))
		m.sweep()
		if !run.Sleep(ctx, surveyEvery) {
			return
		}
	}
}

func (k *Keeper) survey(ctx context.Context, m *meter) *diskusage.Pods {
	out := &diskusage.Pods{At: time.Now(), Logs: map[string]diskusage.Usage{}, Volumes: map[types.UID]map[string]diskusage.Usage{}}
	for id, file := range k.cfg.Pods.Logs() {
		out.Logs[id] = m.of(ctx, filepath.Dir(file))
	}
	for _, p := range k.cfg.Pods.Running() {
		volumes := map[string]diskusage.Usage{}
		for _, v := range k.volumes(p) {
			volumes[v.Name] = m.of(ctx, v.Dir)
		}
		out.Volumes[p.UID] = volumes
	}
	return out
}
