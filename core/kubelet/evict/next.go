// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/threshold"
)

// Level is how much there is of what a signal watches.
type Level struct {
	Signal string
	// Resource that pods give back, and Condition of a node that has too little of it.
	Resource            corev1.ResourceName
	Condition           corev1.NodeConditionType
	Capacity, Available int64
	Format              resource.Format
}

// limit is one that is set for a signal.
type limit struct {
	signal string
	soft   bool
}

// State is what is to be known of the past: since when there has been too little of what. The zero State knows of none, as
// after a restart. It is not changed: there is a new one after each look.
type State struct {
	since map[limit]time.Time
	// evicting for a limit ends when the minimum was reclaimed, too.
	evicting map[limit]bool
	// pressed is when a condition last had a reason.
	pressed map[corev1.NodeConditionType]time.Time
}

// Outlook is what follows from a State.
type Outlook struct {
	// Short is what pods are to go for, what is short by hard limits first.
	Short []node.Short
	// Pressure are the conditions that hold.
	Pressure []corev1.NodeConditionType
}

// Next state of a node that has had too little of what State says, and now has what levels say. It decides as upstream's
// eviction manager: a soft limit makes a condition at once, and evicts when its grace period is over; an eviction ends when
// there is MinimumReclaim more than the limit; a condition ends PressureTransitionPeriod after its last reason.
func Next(r *threshold.Rules, old State, now time.Time, levels []Level) (State, Outlook) {
	s := State{since: map[limit]time.Time{}, evicting: map[limit]bool{}, pressed: map[corev1.NodeConditionType]time.Time{}}
	var out Outlook
	short := map[corev1.ResourceName]bool{}
	for _, soft := range []bool{false, true} {
		for i := range levels {
			v := &levels[i]
			l := limit{v.Signal, soft}
			least, below := l.crossed(r, v, old.evicting[l])
			if !below {
				continue
			}
			s.pressed[v.Condition], s.since[l] = now, now
			if at, known := old.since[l]; known {
				s.since[l] = at
			}
			if soft && now.Sub(s.since[l]) < r.SoftGracePeriod[v.Signal] {
				continue
			}
			s.evicting[l] = true
			if !short[v.Resource] {
				short[v.Resource] = true
				out.Short = append(out.Short, l.shortage(r, v, least))
			}
		}
	}
	for condition, at := range old.pressed {
		if _, anew := s.pressed[condition]; !anew && now.Sub(at) < r.PressureTransitionPeriod {
			s.pressed[condition] = at
		}
	}
	out.Pressure = slices.Sorted(maps.Keys(s.pressed))
	return s, out
}

// crossed tells how much there is to be by a limit, and whether there is less. Where pods go for it, the minimum to reclaim
// is to be there, too.
func (l limit) crossed(r *threshold.Rules, v *Level, evicting bool) (least int64, below bool) {
	set := r.Hard
	if l.soft {
		set = r.Soft
	}
	is, ok := set[l.signal]
	if !ok {
		return 0, false
	}
	least = is.Of(v.Capacity)
	wanted := least
	if more, ok := r.MinimumReclaim[l.signal]; ok && evicting {
		wanted += more.Of(v.Capacity)
	}
	return least, v.Available < wanted
}

func (l limit) shortage(r *threshold.Rules, v *Level, least int64) node.Short {
	s := node.Short{
		Resource: v.Resource, Threshold: *resource.NewQuantity(least, v.Format), Available: *resource.NewQuantity(v.Available, v.Format),
	}
	if l.soft {
		s.Grace = r.MaxPodGracePeriod
	}
	return s
}
