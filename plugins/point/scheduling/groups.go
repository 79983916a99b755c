// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/usage"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// Groups implements framework.Grouping.
func (a *Plugin) Groups() any {
	if g := a.groups(); g != nil {
		return g
	}
	return nil
}

func (a *Plugin) groups() *abi.Groups {
	v := a.plugin.Current()
	if v == nil || v.Manifest == nil {
		return nil
	}
	return v.Manifest.Groups
}

// GroupOf implements framework.Grouping.
func (a *Plugin) GroupOf(p *corev1.Pod) string {
	if g := a.groups(); g != nil {
		return g.Of(p)
	}
	return ""
}

// usageDocument is what a group has.
type usageDocument struct {
	Requested *amounts `json:"requested"`
	Leaving   *amounts `json:"leaving"`
	Promised  *amounts `json:"promised"`
}

// gangDocument is the gang of a pod.
type gangDocument struct {
	Name     string   `json:"name"`
	Need     int      `json:"need"`
	Requests *amounts `json:"requests"`
}

func usageOf(u *framework.Usage) *usageDocument {
	if u == nil {
		u = &framework.Usage{}
	}
	return &usageDocument{resources(&u.Requested), resources(&u.Leaving), resources(&u.Promised)}
}

// root says whether a hook reads the part of its document that has a name.
func root(h *point.Hook, name string) bool {
	return len(h.Fields) == 0 || slices.ContainsFunc(h.Fields, func(f string) bool {
		rest, found := strings.CutPrefix(f, name)
		return found && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// grouped adds what a hook reads about groups: the pod's own, all of them, and what there is in all.
func (a *Plugin) grouped(pt abi.Point, doc *cycleDocument, p *framework.PodInfo, count func() *framework.Usages) {
	v := a.plugin.Current()
	if v == nil || v.Hook(pt) == nil || v.Manifest.Groups == nil {
		return
	}
	doc.Group = v.Manifest.Groups.Of(p.Pod)
	h := v.Hook(pt)
	own, all, others, total := root(h, "usage"), root(h, "groups"), root(h, "others"), root(h, "total")
	if !own && !all && !others && !total {
		return
	}
	u := count()
	if total {
		doc.Total = resources(&u.Total)
	}
	if own {
		doc.Usage = usageOf(u.Groups[doc.Group])
	}
	if others {
		doc.Others = usageOf(u.Groups[""])
	}
	if all {
		doc.Groups = map[string]*usageDocument{}
		for name, one := range u.Groups {
			if name != "" {
				doc.Groups[name] = usageOf(one)
			}
		}
	}
}

// inCycle adds what a hook of a cycle reads about groups and about the pod's gang.
func (a *Plugin) inCycle(pt abi.Point, doc *cycleDocument, s *framework.State, p *framework.PodInfo, snap *framework.Snapshot) {
	company := s.Company()
	if g := company.Gang; g != nil {
		doc.Gang = &gangDocument{g.Name, g.Need, resources(&g.Requests)}
	}
	a.grouped(pt, doc, p, func() *framework.Usages { return usage.Of(snap, a, company.Ahead) })
}

// RankGroup implements framework.GroupSort.
func (a *Plugin) RankGroup(ctx context.Context, p *framework.PodInfo, all *framework.Usages) (int64, *framework.Status) {
	doc := a.newCycleDocument(nil, p)
	a.grouped(abi.SchedulingQueueSort, doc, p, func() *framework.Usages { return all })
	return a.rank(ctx, doc)
}

// Reclaim implements framework.Reclaimer. Pods of the same or a higher priority than the one that needs room
// make it only as far as the entry grants it.
func (a *Plugin) Reclaim(ctx context.Context, s *framework.State, p *framework.PodInfo, snap *framework.Snapshot,
) ([]framework.Allowance, *framework.Status) {
	doc := a.newCycleDocument(s, p)
	a.inCycle(abi.SchedulingPostFilter, doc, s, p, snap)
	var answer abi.PostFilterAnswer
	c, st := a.ask(ctx, abi.SchedulingPostFilter, doc, func(b []byte) (o point.Outcome, err error) {
		if answer, err = abi.ParsePostFilter(b); err == nil && answer.Nominated != "" {
			err = errors.New("it nominated a node: a plugin that tells groups apart says by reclaim who makes room")
		}
		if len(answer.Reclaim) == 0 {
			return point.Outcome{Decision: "no opinion", Message: strings.Join(answer.Reasons, ", ")}, err
		}
		return point.Outcome{Decision: "reclaim", Message: fmt.Sprintf("from %d groups", len(answer.Reclaim))}, err
	})
	switch {
	case c == nil && st != nil:
		return nil, st
	case c == nil:
		return nil, framework.NewStatus(framework.Unschedulable, "reclaiming: plugin "+a.Name()+" did not say who may make room.")
	case len(answer.Reclaim) == 0:
		return nil, framework.NewStatus(framework.Unschedulable, answer.Reasons...)
	}
	highest := priority(p) - 1
	if granted := c.Version.Entry.Grants.Reclaim.HighestPriority; granted != nil {
		highest = max(highest, *granted)
	}
	out := make([]framework.Allowance, len(answer.Reclaim))
	for i, r := range answer.Reclaim {
		out[i] = framework.Allowance{Group: r.Group, Below: r.Below, Keep: kept(r.Keep), Highest: highest}
	}
	return out, nil
}

// kept are amounts by resource; nil where there are none.
func kept(a *abi.Amounts) map[corev1.ResourceName]int64 {
	if a == nil {
		return nil
	}
	out := map[corev1.ResourceName]int64{}
	for name, n := range a.Scalar {
		out[corev1.ResourceName(name)] = n
	}
	for name, n := range map[corev1.ResourceName]*int64{
		corev1.ResourceCPU: a.MilliCPU, corev1.ResourceMemory: a.Memory, corev1.ResourceEphemeralStorage: a.EphemeralStorage,
		corev1.ResourcePods: a.Pods,
	} {
		if n != nil {
			out[name] = *n
		}
	}
	return out
}

// Sign implements framework.Signed: pods of which the plugin's refusing hooks read the same are refused alike, if
// these hooks say that they depend on nothing else.
func (a *Plugin) Sign(p *framework.PodInfo, s *framework.Signature) bool {
	v := a.plugin.Current()
	if v == nil || v.Hook(abi.SchedulingTable) != nil {
		return false
	}
	doc := &cycleDocument{Pod: podObject(p.Pod), Requests: resources(&p.Requests)}
	if v.Manifest.Groups != nil {
		doc.Group = v.Manifest.Groups.Of(p.Pod)
	}
	for _, pt := range []abi.Point{abi.SchedulingPreFilter, abi.SchedulingFilter, abi.SchedulingPostFilter} {
		h := v.Hook(pt)
		if h == nil {
			continue
		}
		if !h.Pure || len(h.Fields) == 0 || h.Projection == nil {
			return false
		}
		var w abi.Writer
		h.Projection.Write(&w, doc, "Pod")
		s.Text(string(w.Bytes()))
	}
	return true
}
