// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

const (
	// downscaleWindow is how long a high recommendation holds replicas up where
	// nothing else is said.
	downscaleWindow = 5 * time.Minute
	// Without behaviors, replicas at most double at a time, and up to four are always allowed.
	scaleUpFactor, scaleUpLeast = 2, 4
)

// history is what was recommended and done of late. It is a value: who adds to it
// gets another one.
type history struct {
	recommendations []recommendation
	changes         []change
}

type recommendation struct {
	replicas int32
	at       time.Time
}

// change of the number of replicas, up or down.
type change struct {
	by int32
	at time.Time
}

// recommended adds a recommendation, and drops those that no window reaches any more.
func (h history) recommended(replicas int32, now time.Time, window time.Duration) history {
	cutoff := now.Add(-window)
	kept := slices.DeleteFunc(slices.Clone(h.recommendations), func(r recommendation) bool { return r.at.Before(cutoff) })
	h.recommendations = append(kept, recommendation{replicas, now})
	return h
}

// changed adds a change, and drops those that no policy counts any more. Without
// behaviors none does.
func (h history) changed(by int32, now time.Time, b *autoscalingv2.HorizontalPodAutoscalerBehavior) history {
	if b == nil {
		h.changes = nil
		return h
	}
	cutoff := now.Add(-max(longest(b.ScaleUp), longest(b.ScaleDown)))
	h.changes = append(slices.DeleteFunc(slices.Clone(h.changes), func(c change) bool { return c.at.Before(cutoff) }), change{by, now})
	return h
}

func longest(rules *autoscalingv2.HPAScalingRules) (d time.Duration) {
	if rules == nil {
		return 0
	}
	for _, p := range rules.Policies {
		d = max(d, seconds(p.PeriodSeconds))
	}
	return d
}

// within is by how much replicas changed in a period.
func (h history) within(period time.Duration, now time.Time) (sum int32) {
	cutoff := now.Add(-period)
	for _, c := range h.changes {
		if c.at.After(cutoff) {
			sum += c.by
		}
	}
	return sum
}

// normalizing is what a recommendation is brought into its bounds with.
type normalizing struct {
	behavior         *autoscalingv2.HorizontalPodAutoscalerBehavior // nil = none
	least, most      int32
	current, desired int32
	history          history
	now              time.Time
}

// normalized is the number of replicas that is allowed, with the conditions that say
// what held it back.
type normalized struct {
	replicas      int32
	able, limited outcome
	history       history
}

// outcome is one condition.
type outcome struct {
	held            bool
	reason, message string
}

const (
	lowerBefore  = "recent recommendations were lower than current one, applying the lowest recent recommendation"
	higherBefore = "recent recommendations were higher than current one, applying the highest recent recommendation"
)

func (n normalizing) normalize() normalized {
	stable, h, held := n.stabilize()
	out := normalized{able: outcome{false, "ReadyForNewScale", "recommended size matches current size"}, history: h}
	if stable != n.desired {
		out.able = held
	}
	n.desired = stable
	if n.behavior == nil {
		out.replicas, out.limited = n.bounded()
	} else {
		out.replicas, out.limited = n.rated()
	}
	return out
}

// stabilize lets a recommendation through as far as those of the windows agree: up
// to the lowest of the one, down to the highest of the other.
func (n normalizing) stabilize() (int32, history, outcome) {
	var up, down time.Duration
	if n.behavior == nil {
		down = downscaleWindow
	} else {
		up, down = window(n.behavior.ScaleUp, 0), window(n.behavior.ScaleDown, downscaleWindow)
	}
	lowest, highest := n.desired, n.desired
	for _, r := range n.history.recommendations {
		if r.at.After(n.now.Add(-up)) {
			lowest = min(lowest, r.replicas)
		}
		if r.at.After(n.now.Add(-down)) {
			highest = max(highest, r.replicas)
		}
	}
	h := n.history.recommended(n.desired, n.now, max(up, down))
	if n.behavior == nil {
		return highest, h, outcome{true, "ScaleDownStabilized", higherBefore}
	}
	held := outcome{true, "ScaleDownStabilized", higherBefore}
	if n.desired >= n.current {
		held = outcome{true, "ScaleUpStabilized", lowerBefore}
	}
	return min(max(n.current, lowest), highest), h, held
}

func window(rules *autoscalingv2.HPAScalingRules, otherwise time.Duration) time.Duration {
	if rules == nil || rules.StabilizationWindowSeconds == nil {
		return otherwise
	}
	return seconds(*rules.StabilizationWindowSeconds)
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

func inRange() outcome {
	return outcome{false, "DesiredWithinRange", "the desired count is within the acceptable range"}
}

func tooFew() outcome {
	return outcome{true, "TooFewReplicas", "the desired replica count is less than the minimum replica count"}
}

func tooMany() outcome {
	return outcome{true, "TooManyReplicas", "the desired replica count is more than the maximum replica count"}
}

func tooFast() outcome {
	return outcome{true, "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"}
}

// bounded is for those without behaviors.
func (n normalizing) bounded() (int32, outcome) {
	most, why := n.most, tooMany()
	if limit := int32(min(max(scaleUpFactor*int64(n.current), scaleUpLeast), math.MaxInt32)); most > limit { //nolint:gosec // it fits
		most, why = limit, tooFast()
	}
	switch {
	case n.desired < n.least:
		return n.least, tooFew()
	case n.desired > most:
		return most, why
	}
	return n.desired, inRange()
}

// rated bounds a change by the policies.
func (n normalizing) rated() (int32, outcome) {
	switch {
	case n.desired > n.current:
		most, why := n.most, tooMany()
		if limit := max(n.rate(n.behavior.ScaleUp, 1), n.current); most > limit {
			most, why = limit, tooFast()
		}
		if n.desired > most {
			return most, why
		}
	case n.desired < n.current:
		least, why := n.least, tooFew()
		if limit := min(n.rate(n.behavior.ScaleDown, -1), n.current); least < limit {
			least, why = limit, outcome{true, "ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate"}
		}
		if n.desired < least {
			return least, why
		}
	}
	return n.desired, inRange()
}

// rate is how many replicas there may be, by policies for one direction (1 or -1).
// The policies count from the replicas that there were when their period began.
func (n normalizing) rate(rules *autoscalingv2.HPAScalingRules, direction int) int32 {
	if rules == nil || len(rules.Policies) == 0 || selects(rules, autoscalingv2.DisabledPolicySelect) {
		return n.current
	}
	var allowed []int32
	for _, p := range rules.Policies {
		begin := int64(n.current) - int64(n.history.within(seconds(p.PeriodSeconds), n.now))
		var limit float64
		switch p.Type {
		case autoscalingv2.PodsScalingPolicy:
			limit = float64(begin + int64(direction)*int64(p.Value))
		case autoscalingv2.PercentScalingPolicy:
			limit = float64(begin) * (1 + float64(direction)*float64(p.Value)/100)
		}
		if direction > 0 {
			limit = math.Ceil(limit) // else one replica would never become two
		}
		allowed = append(allowed, int32(min(max(limit, 0), math.MaxInt32)))
	}
	// The highest limit is most change upwards, and least change downwards.
	if selects(rules, autoscalingv2.MinChangePolicySelect) == (direction < 0) {
		return slices.Max(allowed)
	}
	return slices.Min(allowed)
}

func selects(rules *autoscalingv2.HPAScalingRules, policy autoscalingv2.ScalingPolicySelect) bool {
	return rules.SelectPolicy != nil && *rules.SelectPolicy == policy
}
