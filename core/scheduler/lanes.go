// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/usage"
)

// lanes are the ranks of groups of pods, by lane of the queue, while what they were asked with is the same.
type lanes map[string]lane

type lane struct {
	groups  any // how the plugin told pods apart
	version int64
	rank    int64
}

// lane of the queue in which a pod waits: one for each group, where the plugin that orders the queue
// orders groups; "" = it has a rank of its own.
func (s *Scheduler) lane(p *corev1.Pod) string {
	prof, by := s.sorter(p)
	if by == nil {
		return ""
	}
	return prof + "\x00" + by.GroupOf(p)
}

func (s *Scheduler) sorter(p *corev1.Pod) (profile string, by framework.GroupSort) {
	prof := s.profile(p.Spec.SchedulerName)
	if prof == nil || prof.Sorter == nil {
		return "", nil
	}
	by, ok := prof.Sorter.(framework.GroupSort)
	if !ok || by.Groups() == nil {
		return "", nil
	}
	return prof.Name, by
}

// laneRank is the rank of a group. It is asked for again when what the group has has changed. A
// plugin that fails gives none.
func (s *Scheduler) laneRank(ctx context.Context, name string, first *framework.PodInfo) int64 {
	_, by := s.sorter(first.Pod)
	if by == nil {
		return 0
	}
	snap := s.cache.Snapshot()
	version, groups := usage.Version(snap, by, by.GroupOf(first.Pod)), by.Groups()
	if l, known := s.lanes[name]; known && l.version == version && l.groups == groups {
		return l.rank
	}
	rank, st := by.RankGroup(ctx, first, usage.Of(snap, by, nil))
	if !st.IsSuccess() {
		s.cfg.Logger.WarnContext(ctx, "a plugin could not order a group of pods; they wait by their priority alone", "plugin", by.Name(),
			"group", by.GroupOf(first.Pod), "error", st.Joined())
	}
	s.lanes[name] = lane{groups, version, rank}
	return rank
}
