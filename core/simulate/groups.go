// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// group is a group of pods, measured.
type group struct {
	Group
	waits            []time.Duration
	used, busy, peak amounts
}

// count a pod for its group, where groups are told apart.
func (m *meter) count(p *corev1.Pod, how func(*group)) {
	if m.groupOf == nil {
		return
	}
	name := m.groupOf(p)
	g := m.groups[name]
	if g == nil {
		g = &group{Group: Group{Name: name}, used: amounts{}, busy: amounts{}, peak: amounts{}}
		m.groups[name] = g
	}
	how(g)
}

func (g *group) take(r *framework.Resources, sign float64) {
	g.used.add(r, sign)
	for name, n := range g.used {
		g.peak[name] = max(g.peak[name], n)
	}
}

func (g *group) pass(seconds float64) {
	for name, n := range g.used {
		g.busy[name] += n * seconds
	}
}

// sample the group's share; at is how many samples there are so far: it had nothing before it came.
func (g *group) sample(at int, total amounts) {
	for len(g.Series) < at {
		g.Series = append(g.Series, 0)
	}
	g.Series = append(g.Series, round(share(g.used[corev1.ResourceCPU], total[corev1.ResourceCPU])))
}

func (m *meter) sumUpGroups() {
	for _, name := range slices.Sorted(maps.Keys(m.groups)) {
		g := m.groups[name]
		pending := g.Waiting.Pending
		g.Waiting, g.Resources = waited(g.waits), map[corev1.ResourceName]Use{}
		g.Waiting.Pending = pending
		for of, total := range m.total {
			if total > 0 && g.peak[of] > 0 {
				g.Resources[of] = Use{Mean: round(share(g.busy[of], m.seconds*total)), Peak: round(share(g.peak[of], total))}
			}
		}
		m.r.Groups = append(m.r.Groups, g.Group)
	}
}
