// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"math"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

func percent(value, period int32) autoscalingv2.HPAScalingPolicy {
	return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: value, PeriodSeconds: period}
}

func count(value, period int32) autoscalingv2.HPAScalingPolicy {
	return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: value, PeriodSeconds: period}
}

func rules(window int32, selected autoscalingv2.ScalingPolicySelect,
	policies ...autoscalingv2.HPAScalingPolicy,
) *autoscalingv2.HPAScalingRules {
	return &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &window, SelectPolicy: &selected, Policies: policies}
}

const (
	most  = autoscalingv2.MaxChangePolicySelect
	least = autoscalingv2.MinChangePolicySelect
	off   = autoscalingv2.DisabledPolicySelect
)

// How fast replicas change, by the rules of KEP-853.
func TestPace(t *testing.T) {
	ago := func(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }
	up := func(r *autoscalingv2.HPAScalingRules) *autoscalingv2.HorizontalPodAutoscalerBehavior {
		return &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: r, ScaleDown: rules(0, most, percent(100, 15))}
	}
	down := func(r *autoscalingv2.HPAScalingRules) *autoscalingv2.HorizontalPodAutoscalerBehavior {
		return &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(0, most, percent(100, 15)), ScaleDown: r}
	}
	for name, c := range map[string]struct {
		behavior         *autoscalingv2.HorizontalPodAutoscalerBehavior
		current, desired int32
		history          history
		want             int32
		able, limited    string
	}{
		"up to four at once":                   {nil, 1, 100, history{}, 4, "", "ScaleUpLimit"},
		"doubled at once":                      {nil, 10, 100, history{}, 20, "", "ScaleUpLimit"},
		"held up by the last five minutes":     {nil, 10, 2, history{recommendations: []recommendation{{8, ago(200)}}}, 8, "ScaleDownStabilized", "DesiredWithinRange"},
		"not by what was before":               {nil, 10, 2, history{recommendations: []recommendation{{8, ago(400)}}}, 2, "", "DesiredWithinRange"},
		"as many percent as the policy says":   {up(rules(0, most, percent(50, 60))), 10, 100, history{}, 15, "", "ScaleUpLimit"},
		"percent are rounded up":               {up(rules(0, most, percent(10, 60))), 1, 100, history{}, 2, "", "ScaleUpLimit"},
		"the policy that allows most":          {up(rules(0, most, percent(50, 60), count(7, 60))), 10, 100, history{}, 17, "", "ScaleUpLimit"},
		"the policy that allows least":         {up(rules(0, least, percent(50, 60), count(7, 60))), 10, 100, history{}, 15, "", "ScaleUpLimit"},
		"never up":                             {up(rules(0, off)), 10, 100, history{}, 10, "", "ScaleUpLimit"},
		"what was added counts":                {up(rules(0, most, count(5, 60))), 10, 100, history{changes: []change{{3, ago(30)}}}, 12, "", "ScaleUpLimit"},
		"what was added long ago does not":     {up(rules(0, most, count(5, 60))), 10, 100, history{changes: []change{{3, ago(90)}}}, 15, "", "ScaleUpLimit"},
		"what was taken counts":                {up(rules(0, most, count(5, 60))), 10, 100, history{changes: []change{{-3, ago(30)}}}, 18, "", "ScaleUpLimit"},
		"more was added than may":              {up(rules(0, most, count(5, 60))), 10, 100, history{changes: []change{{9, ago(30)}}}, 10, "", "ScaleUpLimit"},
		"the window holds it down":             {up(rules(60, most, percent(900, 15))), 3, 9, history{recommendations: []recommendation{{5, ago(30)}, {2, ago(90)}}}, 5, "ScaleUpStabilized", "DesiredWithinRange"},
		"down by percent, rounded down":        {down(rules(0, most, percent(15, 60))), 10, 1, history{}, 8, "", "ScaleDownLimit"},
		"down by the policy that allows most":  {down(rules(0, most, percent(10, 60), count(4, 60))), 10, 1, history{}, 6, "", "ScaleDownLimit"},
		"down by the policy that allows least": {down(rules(0, least, percent(10, 60), count(4, 60))), 10, 1, history{}, 9, "", "ScaleDownLimit"},
		"never down":                           {down(rules(0, off)), 10, 1, history{}, 10, "", "ScaleDownLimit"},
		"what was taken before counts":         {down(rules(0, most, count(4, 60))), 10, 1, history{changes: []change{{-3, ago(30)}}}, 9, "", "ScaleDownLimit"},
		"the window holds it up":               {down(rules(60, most, percent(100, 15))), 9, 2, history{recommendations: []recommendation{{7, ago(59)}, {8, ago(61)}}}, 7, "ScaleDownStabilized", "DesiredWithinRange"},
		"no window said: five minutes":         {down(&autoscalingv2.HPAScalingRules{Policies: []autoscalingv2.HPAScalingPolicy{percent(100, 15)}}), 9, 2, history{recommendations: []recommendation{{7, ago(299)}}}, 7, "ScaleDownStabilized", "DesiredWithinRange"},
		"the minimum":                          {down(rules(0, most, percent(100, 15))), 9, 0, history{}, 1, "", "TooFewReplicas"},
		"the maximum":                          {up(rules(0, most, percent(900, 15))), 90, 200, history{}, 100, "", "TooManyReplicas"},
	} {
		t.Run(name, func(t *testing.T) {
			n := normalizing{
				behavior: c.behavior, least: 1, most: 100, current: c.current, desired: c.desired, history: c.history,
				now: now,
			}.normalize()
			if c.able == "" {
				c.able = "ReadyForNewScale"
			}
			if n.replicas != c.want || n.able.reason != c.able || n.limited.reason != c.limited {
				t.Errorf("%d, %s, %s; want %d, %s, %s", n.replicas, n.able.reason, n.limited.reason, c.want, c.able, c.limited)
			}
			if n.limited.held != (c.limited != "DesiredWithinRange") {
				t.Errorf("limited %t by %s", n.limited.held, n.limited.reason)
			}
		})
	}
}

func drawRules(t *rapid.T, name string) *autoscalingv2.HPAScalingRules {
	r := rules(rapid.Int32Range(0, 3600).Draw(t, name+" window"), rapid.SampledFrom([]autoscalingv2.ScalingPolicySelect{most, least, off}).Draw(t, name+" select"))
	for range rapid.IntRange(1, 3).Draw(t, name+" policies") {
		kind := rapid.SampledFrom([]autoscalingv2.HPAScalingPolicyType{autoscalingv2.PercentScalingPolicy, autoscalingv2.PodsScalingPolicy}).Draw(
			t, name+" type")
		r.Policies = append(r.Policies,
			autoscalingv2.HPAScalingPolicy{
				Type: kind, Value: rapid.Int32Range(1, math.MaxInt32).Draw(t, name+" value"),
				PeriodSeconds: rapid.Int32Range(1, 1800).Draw(t, name+" period"),
			})
	}
	return r
}

// Whatever happens over a long time: replicas stay within their bounds, move only in
// the direction that was asked for, and what is remembered stays small.
func TestReplicasStayWithinBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var behavior *autoscalingv2.HorizontalPodAutoscalerBehavior
		if rapid.Bool().Draw(t, "behaviors") {
			behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: drawRules(t, "up"), ScaleDown: drawRules(t, "down")}
		}
		low := rapid.Int32Range(0, 50).Draw(t, "min")
		high := rapid.Int32Range(max(low, 1), 2000).Draw(t, "max")
		current := rapid.Int32Range(low, high).Draw(t, "current")
		var h history
		at := now
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			at = at.Add(time.Duration(rapid.IntRange(1, 300).Draw(t, "seconds")) * time.Second)
			desired := rapid.Int32().Draw(t, "desired")
			if desired < 0 {
				desired = rapid.Int32Range(0, high).Draw(t, "modest")
			}
			before := h
			n := normalizing{behavior: behavior, least: low, most: high, current: current, desired: desired, history: h, now: at}.normalize()
			if n.replicas < low || n.replicas > high {
				t.Fatalf("%d replicas of %d to %d", n.replicas, low, high)
			}
			if behavior != nil &&
				(selects(behavior.ScaleUp, off) && n.replicas > current || selects(behavior.ScaleDown, off) && n.replicas < current) {
				t.Fatalf("from %d to %d, which is switched off", current, n.replicas)
			}
			if behavior != nil && desired >= current && n.replicas < current && len(before.recommendations) == 0 {
				t.Fatalf("from %d to %d, where %d were asked for", current, n.replicas, desired)
			}
			h = n.history
			if n.replicas != current {
				h = h.changed(n.replicas-current, at, behavior)
				current = n.replicas
				for _, c := range h.changes {
					if behavior == nil || at.Sub(c.at) > 30*time.Minute {
						t.Fatalf("a change of %s ago is remembered", at.Sub(c.at))
					}
				}
			}
			for _, r := range h.recommendations {
				if at.Sub(r.at) > time.Hour {
					t.Fatalf("a recommendation of %s ago is remembered", at.Sub(r.at))
				}
			}
		}
	})
}

// drawPods are pods in all their states, with samples of some.
func drawPods(t *rapid.T) ([]*corev1.Pod, samples) {
	var pods []*corev1.Pod
	values := []int64{}
	for range rapid.IntRange(1, 12).Draw(t, "pods") {
		state := rapid.SampledFrom([]func(*corev1.Pod){
			func(*corev1.Pod) {}, func(*corev1.Pod) {}, pending, failed, deleted, noStatus,
			unready(time.Minute, 2*time.Minute), unready(time.Hour, time.Hour), ready(time.Minute, 2*time.Minute),
		}).Draw(t, "state")
		pods = append(pods, aPod("", rapid.Int64Range(1, 10_000).Draw(t, "request"), state))
		values = append(values, rapid.Int64Range(-1, 20_000).Draw(t, "usage"))
	}
	return numbered(pods...), uses(values...)
}

// More usage never asks for fewer replicas than less of it, and readings that are
// there are enough: one metric that cannot be read takes nothing away.
func TestMoreUsageIsNotFewerReplicas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pods, usage := drawPods(t)
		n := int32(len(pods))
		metric := rapid.SampledFrom([]autoscalingv2.MetricSpec{cpu(50), cpu(150), perPod(2000)}).Draw(t, "metric")
		s := &situation{namespace: "ns", wanted: n, there: n, pods: pods, tolerance: tolerance{0.1, 0.1}, now: now}
		low, failed := s.judge(&metric, reading{pods: usage})
		if failed != nil {
			return
		}
		if low.replicas < 0 {
			t.Fatalf("%d replicas", low.replicas)
		}
		higher := samples{}
		for pod, u := range usage {
			u.value += rapid.Int64Range(0, 10_000).Draw(t, "more")
			higher[pod] = u
		}
		high, failed := s.judge(&metric, reading{pods: higher})
		if failed != nil {
			t.Fatalf("more usage cannot be judged: %v", failed.err)
		}
		if high.replicas < low.replicas {
			t.Fatalf("%d replicas for more usage, %d for less", high.replicas, low.replicas)
		}
		hpa := autoscaler(1, 1000, metric, external(milli(1), nil))
		p := whole(fast(hpa), target{wanted: n, there: n, selector: "a=b"},
			evidence{pods: pods, readings: []reading{{pods: usage}, {err: errNoMetrics}}}, history{}, now)
		if p.replicas < n {
			t.Fatalf("from %d to %d replicas although one metric is unknown", n, p.replicas)
		}
	})
}

// The tolerance of each direction is its own.
func TestTolerances(t *testing.T) {
	q := func(s string) *resource.Quantity { return ptr.To(resource.MustParse(s)) }
	b := &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   &autoscalingv2.HPAScalingRules{Tolerance: q("0.5")},
		ScaleDown: &autoscalingv2.HPAScalingRules{Tolerance: q("0")},
	}
	for ratio, want := range map[float64]bool{1.4: true, 1.6: false, 0.99: false, 1: true} {
		if got := toleranceOf(b).covers(ratio); got != want {
			t.Errorf("%g: %t", ratio, got)
		}
	}
	if d := toleranceOf(&autoscalingv2.HorizontalPodAutoscalerBehavior{}); d != (tolerance{0.1, 0.1}) || d != toleranceOf(nil) {
		t.Errorf("by default: %+v", d)
	}
}
