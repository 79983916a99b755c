// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// defaultTolerance is how far usage may be from its target, of the target, before
// anything is done about it.
const defaultTolerance = 0.1

// reading is what a metric's source answered. Values are thousandths.
type reading struct {
	pods  samples // metrics of pods: by the pod's name
	total int64   // metrics of objects, and of the world outside
	err   error
	took  time.Duration
}

type samples map[string]sample

type sample struct {
	value  int64
	at     time.Time
	window time.Duration
}

// situation is what a metric is judged in.
type situation struct {
	namespace string
	// wanted and there are how many replicas the target wants and has.
	wanted, there int32
	pods          []*corev1.Pod // that the target's selector matches
	tolerance     tolerance
	now           time.Time
}

// tolerance for scaling down and up, as parts of the target.
type tolerance struct{ down, up float64 }

func (t tolerance) covers(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

func toleranceOf(b *autoscalingv2.HorizontalPodAutoscalerBehavior) tolerance {
	t := tolerance{defaultTolerance, defaultTolerance}
	if b == nil {
		return t
	}
	if b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
		t.down = b.ScaleDown.Tolerance.AsApproximateFloat64()
	}
	if b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
		t.up = b.ScaleUp.Tolerance.AsApproximateFloat64()
	}
	return t
}

// judged is what one metric asks for.
type judged struct {
	replicas int32
	name     string // in the reason of a rescale
	status   autoscalingv2.MetricStatus
}

// failure says why a metric asks for nothing: cause is what its event and its
// condition say, err is for the sum of all metrics.
type failure struct {
	reason     string
	cause, err error
}

// judge says how many replicas one metric asks for.
func (s *situation) judge(spec *autoscalingv2.MetricSpec, r reading) (judged, *failure) {
	switch spec.Type {
	case autoscalingv2.ResourceMetricSourceType:
		j, current, err := s.resource(spec.Resource.Name, "", spec.Resource.Target, r)
		if err != nil {
			return judged{}, &failure{"FailedGetResourceMetric", err, fmt.Errorf("failed to get %s resource metric value: %w", spec.Resource.Name,
				err)}
		}
		j.status = autoscalingv2.MetricStatus{Type: spec.Type, Resource: &autoscalingv2.ResourceMetricStatus{
			Name:    spec.Resource.Name,
			Current: current,
		}}
		return j, nil
	case autoscalingv2.ContainerResourceMetricSourceType:
		of := spec.ContainerResource
		j, current, err := s.resource(of.Name, of.Container, of.Target, r)
		if err != nil {
			return judged{}, &failure{
				"FailedGetContainerResourceMetric", err,
				fmt.Errorf("failed to get %s container metric value: %w", of.Container, err),
			}
		}
		j.status = autoscalingv2.MetricStatus{Type: spec.Type, ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{
			Name:      of.Name,
			Container: of.Container, Current: current,
		}}
		return j, nil
	case autoscalingv2.PodsMetricSourceType:
		return s.ofPods(spec.Pods, r)
	case autoscalingv2.ObjectMetricSourceType:
		return s.ofObject(spec.Object, r)
	case autoscalingv2.ExternalMetricSourceType:
		return s.external(spec.External, r)
	}
	err := fmt.Errorf("unknown metric source type %q", string(spec.Type))
	return judged{}, &failure{"InvalidMetricSourceType", err, err}
}

// resource judges what pods, or one container of each, use of a resource.
func (s *situation) resource(name corev1.ResourceName, container string, target autoscalingv2.MetricTarget,
	r reading,
) (judged, autoscalingv2.MetricValueStatus, error) {
	fail := func(err error) (judged, autoscalingv2.MetricValueStatus, error) {
		return judged{}, autoscalingv2.MetricValueStatus{}, err
	}
	quantity := func(milli int64) *resource.Quantity {
		if name == corev1.ResourceMemory {
			return resource.NewMilliQuantity(milli, resource.BinarySI)
		}
		return resource.NewMilliQuantity(milli, resource.DecimalSI)
	}
	unreadable := func() error { return fmt.Errorf("unable to get metrics for resource %s: %w", name, r.err) }
	switch {
	case target.AverageValue != nil:
		if r.err != nil {
			return fail(fmt.Errorf("failed to get %s usage: %w", name, unreadable()))
		}
		replicas, average, err := s.plain(r.pods, target.AverageValue.MilliValue(), name)
		if err != nil {
			return fail(fmt.Errorf("failed to get %s usage: %w", name, err))
		}
		return judged{replicas: replicas, name: fmt.Sprintf("%s resource", name)}, autoscalingv2.MetricValueStatus{
			AverageValue: quantity(average),
		}, nil
	case target.AverageUtilization != nil:
		if r.err != nil {
			return fail(fmt.Errorf("failed to get %s utilization: %w", name, unreadable()))
		}
		u := &utilization{target: *target.AverageUtilization, of: func() (map[string]int64, error) { return requestsOf(s.pods, container, name) }}
		replicas, err := s.byPods(r.pods, name, u)
		if err != nil {
			return fail(fmt.Errorf("failed to get %s utilization: %w", name, err))
		}
		of := ""
		if container != "" {
			of = " container"
		}
		return judged{replicas: replicas, name: fmt.Sprintf("%s%s resource utilization (percentage of request)", name, of)},
			autoscalingv2.MetricValueStatus{AverageUtilization: &u.percent, AverageValue: quantity(u.average)}, nil
	}
	return fail(errors.New("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set"))
}

func (s *situation) ofPods(of *autoscalingv2.PodsMetricSource, r reading) (judged, *failure) {
	fail := func(err error) (judged, *failure) {
		return judged{}, &failure{"FailedGetPodsMetric", err, fmt.Errorf("failed to get pods metric value: %w", err)}
	}
	if r.err != nil {
		return fail(fmt.Errorf("unable to get metric %s: %w", of.Metric.Name, r.err))
	}
	if of.Target.AverageValue == nil {
		return fail(errors.New("invalid pods metric source: no average value target was set"))
	}
	replicas, average, err := s.plain(r.pods, of.Target.AverageValue.MilliValue(), "")
	if err != nil {
		return fail(err)
	}
	return judged{replicas, "pods metric " + of.Metric.Name, autoscalingv2.MetricStatus{
		Type: autoscalingv2.PodsMetricSourceType,
		Pods: &autoscalingv2.PodsMetricStatus{Metric: of.Metric, Current: autoscalingv2.MetricValueStatus{AverageValue: thousandths(average)}},
	}}, nil
}

func (s *situation) ofObject(of *autoscalingv2.ObjectMetricSource, r reading) (judged, *failure) {
	fail := func(cause, err error) (judged, *failure) {
		return judged{}, &failure{"FailedGetObjectMetric", cause, fmt.Errorf("failed to get object metric value: %w", err)}
	}
	err := r.err
	if err != nil {
		err = fmt.Errorf("unable to get metric %s on %s %s/%s: %w", of.Metric.Name, of.DescribedObject.Kind, s.namespace,
			of.DescribedObject.Name, err)
	}
	j := judged{status: autoscalingv2.MetricStatus{
		Type:   autoscalingv2.ObjectMetricSourceType,
		Object: &autoscalingv2.ObjectMetricStatus{DescribedObject: of.DescribedObject, Metric: of.Metric},
	}}
	current := &j.status.Object.Current
	switch target := of.Target; {
	case target.Type == autoscalingv2.ValueMetricType && target.Value != nil:
		if err == nil {
			j.replicas, err = s.byRatio(ratio(r.total, target.Value.MilliValue()))
		}
		if err != nil {
			return fail(err, err)
		}
		j.name, current.Value = fmt.Sprintf("%s metric %s", of.DescribedObject.Kind, of.Metric.Name), thousandths(r.total)
	case target.Type == autoscalingv2.AverageValueMetricType && target.AverageValue != nil:
		if err != nil {
			return fail(err, fmt.Errorf("failed to get %s object metric: %w", of.Metric.Name, err))
		}
		var average int64
		j.replicas, average = s.shared(r.total, target.AverageValue.MilliValue())
		j.name, current.AverageValue = fmt.Sprintf("external metric %s(%+v)", of.Metric.Name, of.Metric.Selector), thousandths(average)
	default:
		err := errors.New("invalid object metric source: neither a value target nor an average value target was set")
		return fail(err, err)
	}
	return j, nil
}

func (s *situation) external(of *autoscalingv2.ExternalMetricSource, r reading) (judged, *failure) {
	fail := func(cause, err error) (judged, *failure) {
		return judged{}, &failure{"FailedGetExternalMetric", cause, fmt.Errorf("failed to get %s external metric value: %w", of.Metric.Name, err)}
	}
	err := r.err
	if err != nil {
		err = fmt.Errorf("unable to get external metric %s/%s/%+v: %w", s.namespace, of.Metric.Name, of.Metric.Selector, err)
	}
	j := judged{
		name: fmt.Sprintf("external metric %s(%+v)", of.Metric.Name, of.Metric.Selector),
		status: autoscalingv2.MetricStatus{
			Type:     autoscalingv2.ExternalMetricSourceType,
			External: &autoscalingv2.ExternalMetricStatus{Metric: of.Metric},
		},
	}
	current := &j.status.External.Current
	switch target := of.Target; {
	case target.AverageValue != nil:
		if err != nil {
			return fail(err, fmt.Errorf("failed to get %s external metric: %w", of.Metric.Name, err))
		}
		var average int64
		j.replicas, average = s.shared(r.total, target.AverageValue.MilliValue())
		current.AverageValue = thousandths(average)
	case target.Value != nil:
		if err == nil {
			j.replicas, err = s.byRatio(ratio(r.total, target.Value.MilliValue()))
		}
		if err != nil {
			return fail(err, fmt.Errorf("failed to get external metric %s: %w", of.Metric.Name, err))
		}
		current.Value = thousandths(r.total)
	default:
		err := errors.New("invalid external metric source: neither a value target nor an average value target was set")
		return fail(err, err)
	}
	return j, nil
}

// measure is how far samples are from a target.
type measure interface {
	// ratio is usage divided by its target.
	ratio(samples) (float64, error)
	// full is what a pod without a sample is taken to use where that keeps it alive.
	full(pod string) int64
}

// average is a measure of values.
type average struct{ target, value int64 }

func (a *average) ratio(of samples) (float64, error) {
	var sum int64
	for _, s := range of {
		sum = add(sum, s.value)
	}
	a.value = sum / int64(len(of))
	return ratio(a.value, a.target), nil
}

func (a *average) full(string) int64 { return a.target }

// utilization is a measure of percents of what pods requested.
type utilization struct {
	target   int32
	of       func() (map[string]int64, error)
	requests map[string]int64

	percent int32
	average int64
}

func (u *utilization) ratio(of samples) (_ float64, err error) {
	if u.requests == nil {
		if u.requests, err = u.of(); err != nil {
			return 0, err
		}
	}
	var used, requested, n int64
	for pod, s := range of {
		if request, known := u.requests[pod]; known {
			used, requested, n = add(used, s.value), add(requested, request), n+1
		}
	}
	if requested == 0 {
		return 0, errors.New("no metrics returned matched known pods")
	}
	percent := float64(used) * 100 / float64(requested)
	u.percent, u.average = int32(min(percent, math.MaxInt32)), used/n
	return float64(u.percent) / float64(u.target), nil
}

func (u *utilization) full(pod string) int64 {
	return int64(float64(u.requests[pod]) * float64(max(100, u.target)) / 100)
}

// plain judges the average of pods' values. The average is that of the pods that count.
func (s *situation) plain(of samples, target int64, name corev1.ResourceName) (replicas int32, value int64, err error) {
	a := &average{target: target}
	replicas, err = s.byPods(of, name, a)
	return replicas, a.value, err
}

// byPods judges pods' samples by upstream's rules: what pods that start use counts
// for nothing where it would add more, pods without a sample count as if they used
// nothing where more would be added and as if they used all where some would be
// taken, and what that assumes never turns the direction round.
func (s *situation) byPods(of samples, name corev1.ResourceName, m measure) (int32, error) {
	if len(s.pods) == 0 {
		return 0, errors.New("no pods returned by selector while calculating replica count")
	}
	g := s.group(of, name)
	of = maps.Clone(of)
	for _, out := range [][]string{g.ignored, g.unready} {
		for _, pod := range out {
			delete(of, pod)
		}
	}
	if len(of) == 0 {
		return 0, errors.New("did not receive metrics for targeted pods (pods might be unready)")
	}
	first, err := m.ratio(of)
	if err != nil {
		return 0, err
	}
	counted := len(g.unready) > 0 && first > 1
	if !counted && len(g.missing) == 0 {
		if s.tolerance.covers(first) {
			return s.wanted, nil
		}
		return ceiling(first * float64(g.ready)), nil
	}
	for _, pod := range g.missing {
		switch {
		case first < 1:
			of[pod] = sample{value: m.full(pod)}
		case first > 1:
			of[pod] = sample{}
		}
	}
	if counted {
		for _, pod := range g.unready {
			of[pod] = sample{}
		}
	}
	return s.second(first, of, m)
}

// second judges samples to which assumptions were added. What was measured before
// them is what is shown.
func (s *situation) second(first float64, of samples, m measure) (int32, error) {
	var then float64
	var err error
	switch m := m.(type) {
	case *average:
		shown := *m
		then, err = shown.ratio(of)
	case *utilization:
		shown := *m
		then, err = shown.ratio(of)
	default:
		then, err = m.ratio(of)
	}
	if err != nil {
		return 0, err
	}
	if s.tolerance.covers(then) || first < 1 && then > 1 || first > 1 && then < 1 {
		return s.wanted, nil
	}
	replicas := ceiling(then * float64(len(of)))
	if then < 1 && replicas > s.wanted || then > 1 && replicas < s.wanted {
		return s.wanted, nil
	}
	return replicas, nil
}

// byRatio judges a value of something else than pods: so many times the pods that
// are ready. From zero there are none, and the tolerance would keep it so.
func (s *situation) byRatio(ratio float64) (int32, error) {
	if s.wanted == 0 {
		return ceiling(ratio), nil
	}
	if s.tolerance.covers(ratio) {
		return s.wanted, nil
	}
	if len(s.pods) == 0 {
		return 0, errors.New("unable to calculate ready pods: no pods returned by selector while calculating replica count")
	}
	return ceiling(ratio * float64(readyPods(s.pods))), nil
}

// shared judges a value of which each replica takes its part.
func (s *situation) shared(total, each int64) (replicas int32, part int64) {
	replicas = s.there
	if !s.tolerance.covers(float64(total) / (float64(each) * float64(s.there))) {
		replicas = ceiling(ratio(total, each))
	}
	return replicas, clamp(math.Ceil(float64(total) / float64(s.there)))
}

func thousandths(milli int64) *resource.Quantity {
	return resource.NewMilliQuantity(milli, resource.DecimalSI)
}

// ratio of two numbers; validation has seen to it that no target is zero.
func ratio(a, b int64) float64 { return float64(a) / float64(b) }

// add does not run over: the sum of a lot is the most that there is.
func add(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// ceiling of a number of replicas, of which there are never more than fit.
func ceiling(f float64) int32 {
	switch {
	case math.IsNaN(f) || f <= 0:
		return 0
	case f >= math.MaxInt32:
		return math.MaxInt32
	}
	return int32(math.Ceil(f))
}

func clamp(f float64) int64 {
	switch {
	case math.IsNaN(f):
		return 0
	case f >= math.MaxInt64:
		return math.MaxInt64
	}
	return int64(f)
}
