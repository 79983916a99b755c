// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
)

// Measurer is an optional power of a Plugin: how full a volume is. It may answer what it
// knew a while ago, and takes seconds at the most.
type Measurer interface {
	Usage(ctx context.Context, r Request) (diskusage.FileSystem, bool)
}

// Measured is how full a volume of a pod is. Claim is the name of its claim; empty: it is
// the pod's own.
type Measured struct {
	Name, Claim string
	diskusage.FileSystem
}

// Measure answers how full a pod's volumes are, as far as their plugins know.
func (m *Manager) Measure(ctx context.Context, uid types.UID) []Measured {
	m.mu.Lock()
	pv := m.pods[uid]
	var p *corev1.Pod
	places := map[string]string{}
	if pv != nil && !pv.gone {
		p = pv.pod
		for name, mounted := range pv.mounted {
			places[name] = mounted.Path
		}
	}
	m.mu.Unlock()
	if p == nil {
		return nil
	}
	var out []Measured
	var got sync.Mutex
	var wg sync.WaitGroup
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		for _, pl := range m.plugins {
			measurer, ok := pl.(Measurer)
			if !ok || places[v.Name] == "" || !m.within(uid, pl, places[v.Name]) {
				continue
			}
			claim, _ := claimOf(p, v)
			wg.Go(func() {
				u, ok := measurer.Usage(ctx, Request{Pod: p, Volume: v, Dir: filepath.Dir(places[v.Name])})
				if ok {
					got.Lock()
					defer got.Unlock()
					out = append(out, Measured{v.Name, claim, u})
				}
			})
		}
	}
	wg.Wait()
	return out
}

// within says whether a path is one of a plugin's volumes of the pod.
func (m *Manager) within(uid types.UID, pl Plugin, path string) bool {
	return filepath.Dir(filepath.Dir(path)) == filepath.Join(m.podDir(uid), "volumes", escapeName(pl.Name()))
}
