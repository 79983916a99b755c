// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// systemCritical is the lowest priority of pods that a cluster cannot do without (system-cluster-critical).
const systemCritical = 2_000_000_000

// Period is the time that the pods of a priority, and of those up to the next Period's, have to end.
type Period struct {
	Priority int32
	Grace    time.Duration
}

// Settings of a node, as upstream's KubeletConfiguration has them.
type Settings struct {
	// Grace is how long all pods may take to end, and Critical the part of it that is for critical pods alone.
	Grace, Critical time.Duration
	// ByPriority is the same in more steps. Where it is given, the others are not.
	ByPriority []Period
}

// SettingError is what is wrong with one of the Settings.
type SettingError struct {
	// Setting by upstream's name.
	Setting string
	Err     error
}

func (e *SettingError) Error() string { return e.Setting + ": " + e.Err.Error() }

func (e *SettingError) Unwrap() error { return e.Err }

// Periods are Settings that have been read, the lowest priority first. There are none where nothing is set: the
// machine goes down without regard to its pods.
type Periods []Period

// Read the settings. What is wrong is a SettingError.
func (s *Settings) Read() (Periods, error) {
	for _, one := range []struct {
		name string
		d    time.Duration
	}{{"shutdownGracePeriod", s.Grace}, {"shutdownGracePeriodCriticalPods", s.Critical}} {
		if one.d < 0 || one.d != one.d.Truncate(time.Second) {
			return nil, &SettingError{one.name, fmt.Errorf("expected whole seconds, at least 0s, found %v", one.d)}
		}
	}
	if s.Critical > s.Grace {
		err := fmt.Errorf("expected at most shutdownGracePeriod, of which it is a part (%v), found %v", s.Grace, s.Critical)
		return nil, &SettingError{"shutdownGracePeriodCriticalPods", err}
	}
	if len(s.ByPriority) > 0 {
		return s.byPriority()
	}
	if s.Grace == 0 {
		return nil, nil
	}
	return Periods{{0, s.Grace - s.Critical}, {systemCritical, s.Critical}}, nil
}

func (s *Settings) byPriority() (Periods, error) {
	const name = "shutdownGracePeriodByPodPriority"
	if s.Grace != 0 || s.Critical != 0 {
		return nil, &SettingError{name, fmt.Errorf("expected either this or shutdownGracePeriod and shutdownGracePeriodCriticalPods, found both")}
	}
	seen := map[int32]bool{}
	for i, p := range s.ByPriority {
		if p.Grace < 0 {
			return nil, &SettingError{fmt.Sprintf("%s[%d]", name, i), fmt.Errorf("expected at least 0 seconds, found %v", p.Grace)}
		}
		if seen[p.Priority] {
			return nil, &SettingError{fmt.Sprintf("%s[%d]", name, i), fmt.Errorf("priority %d is given twice", p.Priority)}
		}
		seen[p.Priority] = true
	}
	out := Periods(slices.Clone(s.ByPriority))
	slices.SortFunc(out, func(a, b Period) int { return int(int64(a.Priority) - int64(b.Priority)) })
	return out, nil
}

// Total is how long all pods may take.
func (p Periods) Total() (sum time.Duration) {
	for _, one := range p {
		sum += one.Grace
	}
	return sum
}

// Victim is a pod and how long it may take to end.
type Victim struct {
	Pod   *corev1.Pod
	Grace int64 // seconds
}

// Group of pods that end at the same time. The next one's turn is when they have ended, or after Wait.
type Group struct {
	Priority int32
	Wait     time.Duration
	Pods     []Victim
}

// Plan says who ends when: groups in the order of their turn, those of the lowest priority first. A pod is of the group
// with the highest priority that is not above its own, or of the first. Groups without pods take no time, and are left out.
func (p Periods) Plan(pods []*corev1.Pod) []Group {
	if len(p) == 0 {
		return nil
	}
	all := make([]Group, len(p))
	for i, one := range p {
		all[i] = Group{Priority: one.Priority, Wait: one.Grace}
	}
	for _, pod := range pods {
		var priority int32
		if pod.Spec.Priority != nil {
			priority = *pod.Spec.Priority
		}
		at := 0
		for i := range all {
			if all[i].Priority <= priority {
				at = i
			}
		}
		grace := int64(all[at].Wait / time.Second)
		if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
			grace = min(grace, *own)
		}
		all[at].Pods = append(all[at].Pods, Victim{pod, max(grace, atOnce)})
	}
	return slices.DeleteFunc(all, func(g Group) bool { return len(g.Pods) == 0 })
}

// atOnce is the grace of pods that are killed, in seconds.
const atOnce = 1
