// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"errors"
	"testing"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
)

func TestMetrics(t *testing.T) {
	register()
	value := func(of *metrics.CounterVec, labels ...string) float64 {
		v, err := testutil.GetCounterMetricValue(of.WithLabelValues(labels...))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	pods := numbered(aPod("a", 1000), aPod("b", 1000))
	busy := evidence{pods: pods, readings: []reading{{pods: uses(900, 900), took: time.Second}}}
	for what, c := range map[string]struct {
		target          target
		evidence        evidence
		action, failure string
		computed        []string
	}{
		"more":             {target{wanted: 2, there: 2, selector: "a=b"}, busy, "scale_up", "none", []string{"scale_up", "none", "Resource"}},
		"not readable":     {target{wanted: 2, there: 2, selector: "a=b"}, evidence{pods: pods, readings: []reading{{err: errors.New("no metrics")}}}, "none", "internal", []string{"none", "internal", "Resource"}},
		"no selector":      {target{wanted: 2, there: 2}, evidence{}, "none", "spec", nil},
		"other autoscaler": {target{wanted: 2, there: 2, selector: "a=b"}, evidence{pods: pods, rivals: []string{"x", "y"}}, "none", "spec", nil},
	} {
		before, computedBefore := value(reconciliations, c.action, c.failure), 0.0
		if c.computed != nil {
			computedBefore = value(computations, c.computed...)
		}
		p := whole(autoscaler(1, 10, cpu(50)), c.target, c.evidence, history{}, now)
		computed(p, c.evidence)
		reconciled(p, time.Second)
		if got := value(reconciliations, c.action, c.failure) - before; got != 1 {
			t.Errorf("%s: %s %s was counted %v times", what, c.action, c.failure, got)
		}
		if c.computed != nil {
			if got := value(computations, c.computed...) - computedBefore; got != 1 {
				t.Errorf("%s: a computation %v was counted %v times", what, c.computed, got)
			}
		}
	}
}
