// SPDX-License-Identifier: Apache-2.0

package job

import (
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

// growth is a metric with its labels, and how much it is to grow.
type growth struct {
	of     *metrics.CounterVec
	labels []string
	grows  float64
}

func (c growth) value(t *testing.T) float64 {
	t.Helper()
	v, err := testutil.GetCounterMetricValue(c.of.WithLabelValues(c.labels...))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// grow runs a Job until its condition is true, and waits for the counters.
func grow(t *testing.T, job *batchv1.Job, end func(*corev1.Pod) corev1.PodPhase, kind batchv1.JobConditionType, counters ...growth) {
	t.Helper()
	register()
	before := make([]float64, len(counters))
	for i, c := range counters {
		before[i] = c.value(t)
	}
	c := start(t, job)
	until(t, c, end, kind)
	controllertest.Eventually(t, func() error {
		for i, c := range counters {
			if got := c.value(t) - before[i]; got != c.grows {
				return fmt.Errorf("counter %d with labels %q grew by %v, want %v", i, c.labels, got, c.grows)
			}
		}
		return nil
	})
}

func TestMetricsOfAJobThatCompletes(t *testing.T) {
	grow(t, asIndexed(countTo(5, 2, 6)), func(*corev1.Pod) corev1.PodPhase { return corev1.PodSucceeded }, batchv1.JobComplete,
		growth{jobsFinished, []string{"Indexed", "succeeded", "CompletionsReached"}, 1},
		growth{podsFinished, []string{"Indexed", "succeeded"}, 5},
		growth{indexesFinished, []string{"succeeded", "global"}, 5},
		growth{podsCreated, []string{"new", "succeeded"}, 5},
		growth{podsCreated, []string{"new", "failed"}, 0},
		growth{unaccounted, []string{"add"}, 5},
		growth{unaccounted, []string{"delete"}, 5},
	)
	if n := (growth{of: syncs, labels: []string{"Indexed", "success", "pods_created"}}).value(t); n == 0 {
		t.Error("no reconcile that created pods was counted")
	}
}

func TestMetricsOfAJobThatFails(t *testing.T) {
	job := countTo(1, 1, 6)
	job.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
		Action: batchv1.PodFailurePolicyActionFailJob,
		OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue},
		},
	}}}
	end := func(pod *corev1.Pod) corev1.PodPhase {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue})
		return corev1.PodFailed
	}
	grow(t, job, end, batchv1.JobFailed,
		growth{jobsFinished, []string{"NonIndexed", "failed", "PodFailurePolicy"}, 1},
		growth{podsFinished, []string{"NonIndexed", "failed"}, 1},
		growth{handled, []string{"FailJob"}, 1},
	)
}
