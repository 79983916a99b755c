// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var now = time.Unix(1_700_000_000, 0)

// aPod has requested that many thousandths of a processor, and is ready since an hour.
func aPod(name string, request int64, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}}
	p.Spec.Containers = []corev1.Container{{
		Name: "c",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(request,
			resource.DecimalSI)}},
	}}
	started := metav1.NewTime(now.Add(-time.Hour))
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &started,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: started}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func pending(p *corev1.Pod)  { p.Status.Phase = corev1.PodPending }
func failed(p *corev1.Pod)   { p.Status.Phase = corev1.PodFailed }
func deleted(p *corev1.Pod)  { p.DeletionTimestamp = &metav1.Time{Time: now} }
func noStatus(p *corev1.Pod) { p.Status.Conditions = nil }

// unready since some time, started before some time.
func unready(since, started time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.StartTime = &metav1.Time{Time: now.Add(-started)}
		p.Status.Conditions[0].Status = corev1.ConditionFalse
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-since))
	}
}

func ready(since, started time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		unready(since, started)(p)
		p.Status.Conditions[0].Status = corev1.ConditionTrue
	}
}

func numbered(pods ...*corev1.Pod) []*corev1.Pod {
	for i, p := range pods {
		p.Name = fmt.Sprint(i)
	}
	return pods
}

// uses are samples of the pods, in their order; negative = none.
func uses(values ...int64) samples {
	out := samples{}
	for i, v := range values {
		if v >= 0 {
			out[fmt.Sprint(i)] = sample{value: v, at: now, window: time.Minute}
		}
	}
	return out
}

func cpu(target int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &target},
	}}
}

func milli(n int64) *resource.Quantity { return resource.NewMilliQuantity(n, resource.DecimalSI) }

func perPod(target int64) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "qps"}, Target: autoscalingv2.MetricTarget{
			Type:         autoscalingv2.AverageValueMetricType,
			AverageValue: milli(target),
		},
	}}
}

func external(value, average *resource.Quantity) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: autoscalingv2.MetricTarget{Value: value, AverageValue: average},
	}}
}

func object(target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
		DescribedObject: autoscalingv2.CrossVersionObjectReference{Kind: "Service", Name: "web"},
		Metric:          autoscalingv2.MetricIdentifier{Name: "qps"}, Target: target,
	}}
}

// What one metric asks for, by the rules that upstream documents
// (kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale, "Algorithm details").
func TestJudge(t *testing.T) {
	r := func(s samples) reading { return reading{pods: s} }
	three := numbered(aPod("", 1000), aPod("", 1000), aPod("", 1000))
	for name, c := range map[string]struct {
		pods    []*corev1.Pod
		wanted  int32 // 0 = as many as there are pods
		metric  autoscalingv2.MetricSpec
		reading reading
		want    int32
		err     string // of the condition
		status  string
		average string
	}{
		"at the target":                        {three, 0, cpu(50), r(uses(500, 500, 500)), 3, "", "50%", "500m"},
		"within the tolerance":                 {three, 0, cpu(50), r(uses(540, 540, 540)), 3, "", "54%", ""},
		"above it":                             {three, 0, cpu(50), r(uses(1000, 1000, 1000)), 6, "", "100%", "1"},
		"below it":                             {three, 0, cpu(50), r(uses(100, 100, 100)), 1, "", "10%", ""},
		"rounded up":                           {three, 0, cpu(50), r(uses(600, 600, 600)), 4, "", "60%", ""},
		"nobody uses anything":                 {three, 0, cpu(50), r(uses(0, 0, 0)), 0, "", "0%", ""},
		"no metrics":                           {three, 0, cpu(50), reading{err: errors.New("gone")}, 0, "failed to get cpu utilization: unable to get metrics for resource cpu: gone", "", ""},
		"no pods":                              {nil, 3, cpu(50), r(uses(1)), 0, "failed to get cpu utilization: no pods returned by selector while calculating replica count", "", ""},
		"metrics of others only":               {three, 0, cpu(50), r(samples{"x": {value: 1}}), 0, "failed to get cpu utilization: no metrics returned matched known pods", "", ""},
		"no sample at all":                     {three, 0, cpu(50), r(samples{}), 0, "failed to get cpu utilization: did not receive metrics for targeted pods (pods might be unready)", "", ""},
		"no request":                           {numbered(aPod("", 1000), &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}), 0, cpu(50), r(uses(1, 1)), 0, "failed to get cpu utilization: missing request for cpu in container c of Pod 1", "", ""},
		"missing above: counts as nothing":     {three, 0, cpu(50), r(uses(1000, 1000, -1)), 4, "", "100%", ""},
		"missing above, and so no more above":  {three, 0, cpu(50), r(uses(700, 700, -1)), 3, "", "70%", ""},
		"missing below: counts as all":         {three, 0, cpu(50), r(uses(100, 100, -1)), 3, "", "10%", ""},
		"missing below, still below":           {numbered(aPod("", 1000), aPod("", 1000), aPod("", 1000), aPod("", 1000), aPod("", 1000)), 0, cpu(90), r(uses(100, 100, 100, 100, -1)), 2, "", "10%", ""},
		"pending above: counts as nothing":     {numbered(aPod("", 1000), aPod("", 1000), aPod("", 1000, pending)), 0, cpu(50), r(uses(1000, 1000, -1)), 4, "", "100%", ""},
		"pending below: does not count":        {numbered(aPod("", 1000), aPod("", 1000), aPod("", 1000, pending)), 0, cpu(50), r(uses(100, 100, -1)), 1, "", "10%", ""},
		"failed: does not count":               {numbered(aPod("", 1000), aPod("", 1000, failed)), 0, cpu(50), r(uses(1000, 1000)), 2, "", "100%", ""},
		"deleted: does not count":              {numbered(aPod("", 1000), aPod("", 1000, deleted)), 0, cpu(50), r(uses(1000, 5000)), 2, "", "100%", ""},
		"never ready: its start counts not":    {numbered(aPod("", 1000), aPod("", 1000, unready(50*time.Minute, 50*time.Minute))), 0, cpu(50), r(uses(500, 9000)), 2, "", "50%", ""},
		"was ready: what it uses counts":       {numbered(aPod("", 1000), aPod("", 1000, unready(time.Minute, time.Hour))), 0, cpu(50), r(uses(1000, 1000)), 4, "", "100%", ""},
		"young and unready":                    {numbered(aPod("", 1000), aPod("", 1000, unready(time.Minute, 2*time.Minute))), 0, cpu(50), r(uses(500, 9000)), 2, "", "50%", ""},
		"young, measured before it was ready":  {numbered(aPod("", 1000), aPod("", 1000, ready(30*time.Second, 2*time.Minute))), 0, cpu(50), r(uses(500, 9000)), 2, "", "50%", ""},
		"young, measured since it was ready":   {numbered(aPod("", 1000), aPod("", 1000, ready(90*time.Second, 2*time.Minute))), 0, cpu(50), r(uses(1000, 1000)), 4, "", "100%", ""},
		"of unknown readiness":                 {numbered(aPod("", 1000), aPod("", 1000, noStatus)), 0, cpu(50), r(uses(500, 9000)), 2, "", "50%", ""},
		"pods metric":                          {three, 0, perPod(10000), r(uses(20000, 20000, 20000)), 6, "", "", "20"},
		"pods metric: the start does not bear": {numbered(aPod("", 1000), aPod("", 1000, unready(time.Minute, 2*time.Minute))), 0, perPod(10000), r(uses(10000, 30000)), 4, "", "", "20"},
		"pods metric, missing below":           {three, 0, perPod(10000), r(uses(1000, 1000, -1)), 2, "", "", "1"},
		"pods metric, an error":                {three, 0, perPod(10000), reading{err: errors.New("gone")}, 0, "unable to get metric qps: gone", "", ""},
		"sums do not run over":                 {three, 0, perPod(1), r(uses(1<<62, 1<<62, 1<<62)), 1<<31 - 1, "", "", ""},
		"external value":                       {three, 0, external(milli(2000), nil), reading{total: 4000}, 6, "", "4", ""},
		"external value, unready pods":         {numbered(aPod("", 1000), aPod("", 1000, pending)), 0, external(milli(2000), nil), reading{total: 4000}, 2, "", "4", ""},
		"external value in range":              {three, 0, external(milli(2000), nil), reading{total: 2100}, 3, "", "2100m", ""},
		"external average":                     {three, 0, external(nil, milli(1000)), reading{total: 6500}, 7, "", "", "2167m"},
		"external average in range":            {three, 0, external(nil, milli(1000)), reading{total: 3100}, 3, "", "", "1034m"},
		"external, an error":                   {three, 0, external(milli(1), nil), reading{err: errors.New("gone")}, 0, "unable to get external metric ns/queue/nil: gone", "", ""},
		"external without a target":            {three, 0, external(nil, nil), reading{}, 0, "invalid external metric source: neither a value target nor an average value target was set", "", ""},
		"object value":                         {three, 0, object(autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: milli(10)}), reading{total: 20}, 6, "", "20m", ""},
		"object average":                       {three, 0, object(autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: milli(10)}), reading{total: 90}, 9, "", "", "30m"},
		"object, an error":                     {three, 0, object(autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: milli(10)}), reading{err: errors.New("gone")}, 0, "unable to get metric qps on Service ns/web: gone", "", ""},
		"a source of no known type":            {three, 0, autoscalingv2.MetricSpec{Type: "Tarot"}, reading{}, 0, `unknown metric source type "Tarot"`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := int32(len(c.pods))
			if c.wanted != 0 {
				n = c.wanted
			}
			s := &situation{namespace: "ns", wanted: n, there: n, pods: c.pods, tolerance: tolerance{0.1, 0.1}, now: now}
			j, failed := s.judge(&c.metric, c.reading)
			if (failed != nil) != (c.err != "") {
				t.Fatalf("failed: %+v, want %q", failed, c.err)
			}
			if failed != nil {
				if failed.cause.Error() != c.err {
					t.Errorf("cause %q, want %q", failed.cause, c.err)
				}
				return
			}
			if j.replicas != c.want {
				t.Errorf("%d replicas, want %d", j.replicas, c.want)
			}
			current := currentOf(j.status)
			if got := shown(current); c.status != "" && got != c.status {
				t.Errorf("shows %s, want %s", got, c.status)
			}
			if c.average != "" && current.AverageValue.String() != c.average {
				t.Errorf("average %s, want %s", current.AverageValue, c.average)
			}
		})
	}
}

func currentOf(s autoscalingv2.MetricStatus) autoscalingv2.MetricValueStatus {
	switch s.Type {
	case autoscalingv2.ResourceMetricSourceType:
		return s.Resource.Current
	case autoscalingv2.PodsMetricSourceType:
		return s.Pods.Current
	case autoscalingv2.ObjectMetricSourceType:
		return s.Object.Current
	case autoscalingv2.ContainerResourceMetricSourceType:
		return s.ContainerResource.Current
	case autoscalingv2.ExternalMetricSourceType:
		return s.External.Current
	}
	return autoscalingv2.MetricValueStatus{}
}

func shown(v autoscalingv2.MetricValueStatus) string {
	switch {
	case v.AverageUtilization != nil:
		return fmt.Sprintf("%d%%", *v.AverageUtilization)
	case v.Value != nil:
		return v.Value.String()
	}
	return ""
}

func TestRequests(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	with := func(name string, cpu string) corev1.Container {
		c := corev1.Container{Name: name}
		if cpu != "" {
			c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		}
		return c
	}
	sidecar := with("sidecar", "300m")
	sidecar.RestartPolicy = &always
	level := &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}
	for name, c := range map[string]struct {
		spec      corev1.PodSpec
		container string
		want      int64
		err       string
	}{
		"all containers, and sidecars": {corev1.PodSpec{Containers: []corev1.Container{with("a", "100m"), with("b", "1")}, InitContainers: []corev1.Container{with("init", ""), sidecar}}, "", 1400, ""},
		"one container":                {corev1.PodSpec{Containers: []corev1.Container{with("a", "100m"), with("b", "")}}, "a", 100, ""},
		"one that is a sidecar":        {corev1.PodSpec{Containers: []corev1.Container{with("a", "")}, InitContainers: []corev1.Container{sidecar}}, "sidecar", 300, ""},
		"one that is not there":        {corev1.PodSpec{Containers: []corev1.Container{with("a", "1")}}, "b", 0, "container b not found in Pod p"},
		"one without a request":        {corev1.PodSpec{Containers: []corev1.Container{with("a", "1"), with("b", "")}}, "", 0, "missing request for cpu in container b of Pod p"},
		"of the pod itself":            {corev1.PodSpec{Resources: level, Containers: []corev1.Container{with("a", "")}}, "", 2000, ""},
		"of the pod, but one is asked": {corev1.PodSpec{Resources: level, Containers: []corev1.Container{with("a", "50m")}}, "a", 50, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := requestOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: c.spec}, c.container, corev1.ResourceCPU)
			if got != c.want || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
				t.Errorf("%d, %v; want %d, %q", got, err, c.want, c.err)
			}
		})
	}
}

func autoscaler(least, most int32, metrics ...autoscalingv2.MetricSpec) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", Generation: 7},
		Spec:       autoscalingv2.HorizontalPodAutoscalerSpec{MinReplicas: &least, MaxReplicas: most, Metrics: metrics},
	}
}

// conditions as TYPE=REASON, with a ! where it is false.
func conditions(p *plan) map[string]string {
	out := map[string]string{}
	for _, c := range p.hpa.Status.Conditions {
		reason := c.Reason
		if c.Status == corev1.ConditionFalse {
			reason = "!" + reason
		}
		out[string(c.Type)] = reason
	}
	return out
}

func reasons(p *plan) string {
	var out []string
	for _, e := range p.events {
		out = append(out, e.reason)
	}
	return strings.Join(out, " ")
}

// whole makes a plan of what was found, and carries it out.
func whole(hpa *autoscalingv2.HorizontalPodAutoscaler, t target, e evidence, h history, at time.Time) *plan {
	p := begin(hpa, t, h, at)
	if p.bounds() && p.selector() != nil {
		p.decide(e)
	}
	p.done()
	return p
}

func TestPlan(t *testing.T) {
	pods := numbered(aPod("", 1000), aPod("", 1000), aPod("", 1000))
	at := func(n int32) target { return target{wanted: n, there: n, selector: "app=web"} }
	read := func(r ...reading) evidence { return evidence{pods: pods, readings: r} }
	used := func(each int64) reading { return reading{pods: uses(each, each, each)} }
	wasZeroed := func(h *autoscalingv2.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
		h.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{{
			Type: autoscalingv2.ScaledToZero, Status: corev1.ConditionTrue,
			Reason: "ScaledToZero",
		}}
		return h
	}
	queue := external(nil, milli(1000))
	gone := reading{err: errors.New("gone")}
	for name, c := range map[string]struct {
		hpa        *autoscalingv2.HorizontalPodAutoscaler
		target     target
		evidence   evidence
		replicas   int32
		events     string
		conditions map[string]string
		message    string // of the last event
	}{
		"nothing to do": {
			autoscaler(1, 10, cpu(50)), at(3), read(used(500)), 3, "",
			map[string]string{"AbleToScale": "ReadyForNewScale", "ScalingActive": "ValidMetricFound", "ScalingLimited": "!DesiredWithinRange"},
			"",
		},
		"more": {
			autoscaler(1, 10, cpu(50)), at(3), read(used(1000)), 6, "SuccessfulRescale",
			map[string]string{
				"AbleToScale": "SucceededRescale", "ScalingActive": "ValidMetricFound", "ScalingLimited": "!DesiredWithinRange",
				"ScaledToZero": "!NotScaledToZero",
			},
			"New size: 6; reason: cpu resource utilization (percentage of request) above target",
		},
		"more than the maximum": {
			autoscaler(1, 5, cpu(50)), at(3), read(used(1000)), 5, "SuccessfulRescale",
			map[string]string{"ScalingLimited": "TooManyReplicas"},
			"New size: 5; reason: cpu resource utilization (percentage of request) above target",
		},
		"more than twice as many": {
			autoscaler(1, 100, cpu(10)), at(3), read(used(1000)), 6, "SuccessfulRescale", map[string]string{"ScalingLimited": "ScaleUpLimit"}, "",
		},
		"held by what was there before": {
			autoscaler(1, 10, cpu(50)), at(3), read(used(100)), 3, "", map[string]string{"AbleToScale": "ScaleDownStabilized"}, "",
		},
		"above the maximum": {
			autoscaler(1, 2, cpu(50)), at(3),
			evidence{},
			2, "SuccessfulRescale",
			map[string]string{"AbleToScale": "SucceededRescale"},
			"New size: 2; reason: Current number of replicas above Spec.MaxReplicas",
		},
		"below the minimum": {
			autoscaler(4, 9, cpu(50)), at(3),
			evidence{},
			4, "SuccessfulRescale", nil,
			"New size: 4; reason: Current number of replicas below Spec.MinReplicas",
		},
		"switched off by hand": {
			autoscaler(1, 9, cpu(50)), at(0),
			evidence{},
			0, "",
			map[string]string{"AbleToScale": "SucceededGetScale", "ScalingActive": "!ScalingDisabled"},
			"",
		},
		"no selector": {
			autoscaler(1, 9, cpu(50)),
			target{wanted: 3},
			evidence{},
			3, "SelectorRequired FailedComputeMetricsReplicas",
			map[string]string{"ScalingActive": "!InvalidSelector"},
			"selector is required",
		},
		"a selector that is none": {
			autoscaler(1, 9, cpu(50)),
			target{wanted: 3, selector: "!!"},
			evidence{},
			3, "InvalidSelector FailedComputeMetricsReplicas",
			map[string]string{"ScalingActive": "!InvalidSelector"},
			"",
		},
		"pods of two autoscalers": {
			autoscaler(1, 9, cpu(50)), at(3),
			evidence{pods: pods, rivals: []string{"web", "other"}},
			3, "AmbiguousSelector FailedComputeMetricsReplicas",
			map[string]string{"ScalingActive": "!AmbiguousSelector"},
			"pods by selector app=web are controlled by more than one HPA (e.g. [web other])",
		},
		"no metrics": {
			autoscaler(1, 9, cpu(50)), at(3), read(gone), 3, "FailedGetResourceMetric FailedComputeMetricsReplicas",
			map[string]string{"ScalingActive": "!FailedGetResourceMetric"},
			"invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: failed to get cpu utilization: unable to get metrics for resource cpu: gone",
		},
		"the most of two": {
			autoscaler(1, 9, cpu(50), queue), at(3), read(used(800), reading{total: 6000}), 6, "SuccessfulRescale", nil,
			"New size: 6; reason: external metric queue(nil) above target",
		},
		"one of two is gone, the other wants more": {
			autoscaler(1, 9, cpu(50), queue), at(3), read(gone, reading{total: 6000}), 6, "FailedGetResourceMetric SuccessfulRescale",
			map[string]string{"ScalingActive": "ValidMetricFound"},
			"",
		},
		"one of two is gone, the other wants less": {
			autoscaler(1, 9, cpu(50), queue), at(3), read(gone, reading{total: 1000}), 3, "FailedGetResourceMetric FailedComputeMetricsReplicas",
			map[string]string{"ScalingActive": "!FailedGetResourceMetric"},
			"",
		},
		"to zero": {
			fast(autoscaler(0, 9, queue)), at(3), read(reading{total: 0}), 0, "SuccessfulRescale",
			map[string]string{"ScaledToZero": "ScaledToZero"},
			"New size: 0; reason: All metrics below target",
		},
		"from zero": {
			fast(wasZeroed(autoscaler(0, 9, queue))), at(0), read(reading{total: 2500}), 3, "SuccessfulRescale",
			map[string]string{"ScaledToZero": "!NotScaledToZero"},
			"",
		},
		"from zero, nothing to do yet": {
			fast(wasZeroed(autoscaler(0, 9, queue))), at(0), read(reading{total: 0}), 0, "", map[string]string{"ScaledToZero": "ScaledToZero"}, "",
		},
		"from zero, somebody raised the minimum": {
			fast(wasZeroed(autoscaler(2, 9, queue))), at(0), read(reading{total: 0}), 2, "SuccessfulRescale", nil,
			"New size: 2; reason: Current number of replicas below Spec.MinReplicas",
		},
		"zeroed, and nothing that counts without pods": {
			fast(wasZeroed(autoscaler(0, 9, cpu(50)))), at(0), evidence{}, 0, "", map[string]string{"ScalingActive": "!ScalingDisabled"}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := whole(c.hpa, c.target, c.evidence, history{}, now)
			if p.replicas != c.replicas || p.rescale != (c.replicas != c.target.wanted) {
				t.Errorf("%d replicas (rescale %t), want %d", p.replicas, p.rescale, c.replicas)
			}
			if got := reasons(p); got != c.events {
				t.Errorf("events %q, want %q", got, c.events)
			}
			got := conditions(p)
			for kind, want := range c.conditions {
				if got[kind] != want {
					t.Errorf("condition %s: %q, want %q", kind, got[kind], want)
				}
			}
			if c.message != "" && (len(p.events) == 0 || p.events[len(p.events)-1].message != c.message) {
				t.Errorf("events %+v, want %q", p.events, c.message)
			}
			s := p.hpa.Status
			if s.CurrentReplicas != c.target.wanted || ptr.Deref(s.ObservedGeneration, 0) != 7 || (s.LastScaleTime != nil) != p.rescale {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// fast scales without looking back.
func fast(h *autoscalingv2.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
	rules := func() *autoscalingv2.HPAScalingRules {
		return &autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: ptr.To[int32](0), SelectPolicy: ptr.To(autoscalingv2.MaxChangePolicySelect),
			Policies: []autoscalingv2.HPAScalingPolicy{
				{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
				{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15},
			},
		}
	}
	h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(), ScaleDown: rules()}
	return h
}

func TestRefusedAndUnreachable(t *testing.T) {
	hpa := autoscaler(1, 9, cpu(50))
	p := unreachable(hpa, errors.New("no such thing"), now)
	p.done()
	if reasons(p) != "FailedGetScale" || conditions(p)["AbleToScale"] != "!FailedGetScale" {
		t.Errorf("%s, %v", reasons(p), conditions(p))
	}
	p = begin(hpa, target{wanted: 10, selector: "a"}, history{}, now)
	p.bounds()
	p.refused(errors.New("not today"))
	p.done()
	if reasons(p) != "FailedRescale" || conditions(p)["AbleToScale"] != "!FailedUpdateScale" || p.hpa.Status.LastScaleTime != nil ||
		len(p.history.changes) != 0 {
		t.Errorf("%s, %v, %+v", reasons(p), conditions(p), p.hpa.Status)
	}
	if hpa.Status.Conditions != nil {
		t.Error("the object of the cache was changed")
	}
}
