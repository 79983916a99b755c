// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"errors"
	"fmt"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// target is what is to be scaled, as its scale subresource has it.
type target struct {
	wanted, there int32
	selector      string
}

// evidence is what a plan is made of beside the autoscaler and its target. It is
// looked for only where the plan needs it.
type evidence struct {
	pods []*corev1.Pod
	// rivals are autoscalers whose targets have some of these pods, too.
	rivals []string
	// readings of the autoscaler's metrics, in their order.
	readings []reading
}

// plan is what is to be done about one autoscaler, and what is to be said of it.
type plan struct {
	hpa     *autoscalingv2.HorizontalPodAutoscaler // a copy, whose status is the new one
	target  target
	now     time.Time
	history history
	events  []event

	replicas int32
	rescale  bool
	reason   string
	metrics  []autoscalingv2.MetricStatus
	failed   bool // nothing can be decided
	invalid  bool // because of what is written in the autoscaler or its target
	opinions []opinion
}

// opinion is what one metric asks for.
type opinion struct {
	replicas int32
	failed   *failure
}

type event struct{ kind, reason, message string }

// begin looks at an autoscaler and the size of its target.
func begin(hpa *autoscalingv2.HorizontalPodAutoscaler, t target, h history, now time.Time) *plan {
	p := &plan{hpa: hpa.DeepCopy(), target: t, history: h, now: now, replicas: t.wanted}
	p.condition(autoscalingv2.AbleToScale, true, "SucceededGetScale", "the HPA controller was able to get the target's current scale")
	if len(p.history.recommendations) == 0 {
		p.history = p.history.recommended(t.wanted, now, 0)
	}
	return p
}

// unreachable is the plan for an autoscaler whose target cannot be read.
func unreachable(hpa *autoscalingv2.HorizontalPodAutoscaler, err error, now time.Time) *plan {
	p := &plan{hpa: hpa.DeepCopy(), now: now, failed: true}
	p.warn("FailedGetScale", err.Error())
	p.condition(autoscalingv2.AbleToScale, false,
		"FailedGetScale", "the HPA controller was unable to get the target's current scale: "+err.Error())
	return p
}

func (p *plan) least() int32 {
	if p.hpa.Spec.MinReplicas == nil {
		return 1
	}
	return *p.hpa.Spec.MinReplicas
}

// bounds decides where no metric is needed. more is true where one is.
func (p *plan) bounds() (more bool) {
	most := p.hpa.Spec.MaxReplicas
	switch wanted := p.target.wanted; {
	case wanted == 0 && !p.fromZero():
		p.condition(autoscalingv2.ScalingActive, false, "ScalingDisabled", "scaling is disabled since the replica count of the target is zero")
	case wanted == 0:
		return true
	case wanted > most:
		p.scale(most, "Current number of replicas above Spec.MaxReplicas")
	case wanted < p.least():
		p.scale(p.least(), "Current number of replicas below Spec.MinReplicas")
	default:
		return true
	}
	return false
}

// fromZero tells whether a target of no replicas may get some: only where it was us
// who took the last, and something can say that there is work.
func (p *plan) fromZero() bool {
	return p.scaledToZero() && (p.least() != 0 || countable(p.hpa))
}

// scaledToZero tells whether it was us who took the last replica.
func (p *plan) scaledToZero() bool {
	c := find(p.hpa.Status.Conditions, autoscalingv2.ScaledToZero)
	return c != nil && c.Status == corev1.ConditionTrue
}

// countable tells whether a metric has a value where there are no pods.
func countable(hpa *autoscalingv2.HorizontalPodAutoscaler) bool {
	for _, m := range hpa.Spec.Metrics {
		if m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType {
			return true
		}
	}
	return false
}

// selector of the target's pods; nil where it has none that can be read, of which the
// plan then speaks.
func (p *plan) selector() labels.Selector {
	if p.target.selector == "" {
		p.fail("SelectorRequired", "selector is required", "InvalidSelector", "the HPA target's scale is missing a selector")
		return nil
	}
	selector, err := labels.Parse(p.target.selector)
	if err != nil {
		message := fmt.Sprintf("couldn't convert selector into a corresponding internal selector object: %v", err)
		p.fail("InvalidSelector", message, "InvalidSelector", message)
		return nil
	}
	return selector
}

// fail decides nothing, for a reason that the target itself gives.
func (p *plan) fail(eventReason, message, reason, condition string) {
	p.warn(eventReason, message)
	p.condition(autoscalingv2.ScalingActive, false, reason, condition)
	p.metrics, p.invalid = nil, true
	p.give(errors.New(message))
}

func (p *plan) give(err error) {
	p.failed = true
	p.warn("FailedComputeMetricsReplicas", err.Error())
	p.status(p.hpa.Status.DesiredReplicas)
}

// decide by the metrics.
func (p *plan) decide(e evidence) {
	if len(e.rivals) > 0 {
		message := fmt.Sprintf("pods by selector %v are controlled by more than one HPA (e.g. %v)", p.target.selector, e.rivals)
		p.fail("AmbiguousSelector", message, "AmbiguousSelector", message)
		return
	}
	proposed, by, ok := p.weigh(e)
	if !ok {
		return
	}
	reason := ""
	switch wanted := p.target.wanted; {
	case proposed > wanted:
		reason = by + " above target"
	case proposed < wanted:
		reason = "All metrics below target"
	}
	n := normalizing{
		behavior: p.hpa.Spec.Behavior, least: p.least(), most: p.hpa.Spec.MaxReplicas,
		current: p.target.wanted, desired: proposed, history: p.history, now: p.now,
	}.normalize()
	p.history = n.history
	p.condition(autoscalingv2.AbleToScale, true, n.able.reason, n.able.message)
	p.condition(autoscalingv2.ScalingLimited, n.limited.held, n.limited.reason, n.limited.message)
	if p.target.wanted == 0 && n.replicas < p.least() {
		n.replicas = p.least()
		if reason == "" {
			reason = "Current number of replicas below Spec.MinReplicas"
		}
	}
	if n.replicas != p.target.wanted {
		p.scale(n.replicas, reason)
	}
}

// weigh takes the most of what the metrics ask for. Where one of them cannot be
// read, the others may add replicas, but take none.
func (p *plan) weigh(e evidence) (replicas int32, by string, ok bool) {
	s := &situation{
		namespace: p.hpa.Namespace, wanted: p.target.wanted, there: p.target.there, pods: e.pods, tolerance: toleranceOf(p.hpa.Spec.Behavior),
		now: p.now,
	}
	p.metrics = make([]autoscalingv2.MetricStatus, len(p.hpa.Spec.Metrics))
	var first *failure
	failures := 0
	for i := range p.hpa.Spec.Metrics {
		j, failed := s.judge(&p.hpa.Spec.Metrics[i], e.readings[i])
		p.opinions = append(p.opinions, opinion{j.replicas, failed})
		if failed != nil {
			p.warn(failed.reason, failed.cause.Error())
			if failures++; first == nil {
				first = failed
			}
			continue
		}
		p.metrics[i] = j.status
		if replicas == 0 || j.replicas > replicas {
			replicas, by = j.replicas, j.name
		}
	}
	all := len(p.hpa.Spec.Metrics)
	if failures >= all || failures > 0 && replicas < p.target.wanted {
		if first == nil { // defaulting gives every autoscaler a metric
			first = &failure{"InvalidMetricSourceType", errNoMetrics, errNoMetrics}
		}
		p.condition(autoscalingv2.ScalingActive, false, first.reason, "the HPA was unable to compute the replica count: "+first.cause.Error())
		p.give(fmt.Errorf("invalid metrics (%d invalid out of %d), first error is: %w", failures, all, first.err))
		return 0, "", false
	}
	p.condition(autoscalingv2.ScalingActive, true, "ValidMetricFound", "the HPA was able to successfully calculate a replica count from "+by)
	return replicas, by, true
}

var errNoMetrics = errors.New("the autoscaler has no metrics")

func (p *plan) scale(replicas int32, reason string) {
	p.replicas, p.rescale, p.reason = replicas, true, reason
}

// done ends a plan that was carried out, or that had nothing to carry out.
func (p *plan) done() {
	if p.failed {
		return
	}
	if !p.rescale {
		p.status(p.target.wanted)
		return
	}
	p.condition(autoscalingv2.AbleToScale, true,
		"SucceededRescale", fmt.Sprintf("the HPA controller was able to update the target scale to %d", p.replicas))
	p.events = append(p.events,
		event{corev1.EventTypeNormal, "SuccessfulRescale", fmt.Sprintf("New size: %d; reason: %s", p.replicas, p.reason)})
	p.history = p.history.changed(p.replicas-p.target.wanted, p.now, p.hpa.Spec.Behavior)
	if p.target.wanted > 0 && p.replicas == 0 && p.least() == 0 && countable(p.hpa) {
		p.condition(autoscalingv2.ScaledToZero, true, "ScaledToZero", "the HPA controller scaled the workload to zero")
	} else {
		p.condition(autoscalingv2.ScaledToZero, false, "NotScaledToZero", "the HPA controller did not scale the workload to zero")
	}
	p.status(p.replicas)
	at := metav1.NewTime(p.now)
	p.hpa.Status.LastScaleTime = &at
}

// refused ends a plan whose target could not be written.
func (p *plan) refused(err error) {
	p.failed = true
	p.warn("FailedRescale", fmt.Sprintf("New size: %d; reason: %s; error: %v", p.replicas, p.reason, err))
	p.condition(autoscalingv2.AbleToScale, false,
		"FailedUpdateScale", "the HPA controller was unable to update the target scale: "+err.Error())
	p.status(p.hpa.Status.DesiredReplicas)
}

// status of what was found. Metrics that could not be read have none.
func (p *plan) status(desired int32) {
	generation := p.hpa.Generation
	s := &p.hpa.Status
	s.ObservedGeneration, s.CurrentReplicas, s.DesiredReplicas, s.CurrentMetrics = &generation, p.target.wanted, desired, p.metrics
}

func (p *plan) warn(reason, message string) {
	p.events = append(p.events, event{corev1.EventTypeWarning, reason, message})
}

func (p *plan) condition(kind autoscalingv2.HorizontalPodAutoscalerConditionType, is bool, reason, message string) {
	status := corev1.ConditionFalse
	if is {
		status = corev1.ConditionTrue
	}
	c := find(p.hpa.Status.Conditions, kind)
	if c == nil {
		p.hpa.Status.Conditions = append(p.hpa.Status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{Type: kind})
		c = &p.hpa.Status.Conditions[len(p.hpa.Status.Conditions)-1]
	}
	if c.Status != status {
		c.LastTransitionTime = metav1.NewTime(p.now)
	}
	c.Status, c.Reason, c.Message = status, reason, bounded(message)
}

func find(in []autoscalingv2.HorizontalPodAutoscalerCondition,
	kind autoscalingv2.HorizontalPodAutoscalerConditionType,
) *autoscalingv2.HorizontalPodAutoscalerCondition {
	for i := range in {
		if in[i].Type == kind {
			return &in[i]
		}
	}
	return nil
}

// messageMost is what of a message is kept: some of it is what other servers say.
const messageMost = 4 << 10

func bounded(message string) string {
	if len(message) <= messageMost {
		return message
	}
	return strings.ToValidUTF8(message[:messageMost], "") + "..."
}
