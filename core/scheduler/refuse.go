// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/wasmplane/wasmplane/core/scheduler/decision"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
	"github.com/wasmplane/wasmplane/core/scheduler/report"
)

// gate leaves a pod out of the cycles, and says why on it.
func (s *Scheduler) gate(ctx context.Context, prof *decision.Compiled, it *queue.Item, st *framework.Status) {
	pod := it.Info.Pod
	if st.Code == framework.Error {
		s.cfg.Logger.ErrorContext(ctx, "a plugin could not say whether a pod may be scheduled", "kind", "Pod", "namespace", pod.Namespace,
			"name", pod.Name, "error", st.Joined())
		s.queue.Errored(pod.UID)
	} else {
		why := &standing{profile: prof, pod: it.Info, by: []string{st.Plugin}, asks: context.WithoutCancel(ctx)}
		s.queue.Gated(pod.UID, queue.Refusal{Interest: prof.Interest(why.by), Why: why})
	}
	s.report(ctx, prof, pod, corev1.PodReasonSchedulingGated, st.Joined(), "", false)
}

// refuse puts the pod back and says why, on the pod itself. A nomination is carried
// out first: the pod is tried again when its victims are gone.
func (s *Scheduler) refuse(ctx context.Context, prof *decision.Compiled, it *queue.Item, d *Decision, template string) {
	pod := it.Info.Pod
	if ctx.Err() != nil {
		return
	}
	d.Whole = cmp.Or(prof.Free(ctx, d, it.Info), d.Whole)
	node, err := s.nominate(ctx, prof, it.Info, d)
	if err != nil {
		d.Whole = framework.AsStatus(fmt.Errorf("make room on node %s: %w", d.Nomination.Node, err))
	}
	reason, message := corev1.PodReasonUnschedulable, d.Message()
	if st := d.Fatal(); st != nil {
		reason, message = "SchedulerError", st.Joined()
		s.cfg.Logger.ErrorContext(ctx, "a pod could not be scheduled because of an error", "kind", "Pod", "namespace", pod.Namespace,
			"name", pod.Name, "error", message)
		s.queue.Errored(pod.UID)
	} else {
		s.queue.Failed(pod.UID, s.refusal(ctx, prof, it.Info, d, template))
	}
	s.report(ctx, prof, pod, reason, message, node, true)
}

// speak puts a pod back whose template was refused in the person of another pod. It is told
// so like that one, but not again and again.
func (s *Scheduler) speak(ctx context.Context, prof *decision.Compiled, it *queue.Item, d *Decision, template string) {
	pod, message := it.Info.Pod, d.Message()
	s.queue.Spoken(pod.UID, template)
	if c := report.Scheduled(pod); c != nil && c.Reason == corev1.PodReasonUnschedulable && c.Message == message {
		return
	}
	s.report(ctx, prof, pod, corev1.PodReasonUnschedulable, message, "", true)
}

// nominate keeps the room on the nominated node for the pod and has the victims
// removed. It returns the node.
func (s *Scheduler) nominate(ctx context.Context, prof *decision.Compiled, p *framework.PodInfo, d *Decision) (string, error) {
	n := d.Nomination
	if n == nil {
		return "", nil
	}
	s.unpromise(p.Pod.UID)
	s.nominated.Set(p, n.Node)
	if n.Node != "" {
		s.metrics.Victims(len(n.Victims))
	}
	if n.Node == "" {
		if p.Pod.Status.NominatedNodeName == "" {
			return "", nil
		}
		return "", s.effects.PatchStatus(ctx, p.Pod, map[string]any{"nominatedNodeName": nil})
	}
	if err := s.makeRoom(ctx, prof, p.Pod, n); err != nil {
		s.unpromise(p.Pod.UID)
		return "", err
	}
	return n.Node, nil
}

// makeRoom carries out a nomination: the victims are told why and are deleted,
// and pods of lower priority that were promised the node lose that promise, since
// the room that they waited for is somebody else's now.
func (s *Scheduler) makeRoom(ctx context.Context, prof *decision.Compiled, p *corev1.Pod, n *framework.Nomination) error {
	for _, v := range n.Victims {
		for _, victim := range append(s.gangs.WithIt(v.Pod), v.Pod) {
			if err := s.preempt(ctx, prof, p, victim, n.Node); err != nil {
				return fmt.Errorf("remove pod %s for %s: %w", key(victim), key(p), err)
			}
		}
	}
	s.supersede(ctx, p, n.Node)
	return nil
}

// supersede takes the promise of a node off pods of lower priority.
func (s *Scheduler) supersede(ctx context.Context, p *corev1.Pod, node string) {
	for _, other := range s.nominated.Behind(node, corev1helpers.PodPriority(p)) {
		s.unpromise(other.UID)
		if err := s.effects.PatchStatus(ctx, other, map[string]any{"nominatedNodeName": nil}); err != nil && !apierrors.IsNotFound(err) {
			s.cfg.Logger.WarnContext(ctx, "the node that a pod was promised could not be taken off it", "kind", "Pod", "namespace", other.Namespace,
				"name", other.Name, "node", node, "error", err)
		}
	}
}

func (s *Scheduler) preempt(ctx context.Context, prof *decision.Compiled, p, victim *corev1.Pod, node string) error {
	if s.waiting.Refuse(victim.UID, fmt.Sprintf("preempted by pod %s", p.UID)) {
		return nil // it was not bound yet: nothing runs that would have to be deleted
	}
	if victim.DeletionTimestamp != nil {
		return nil
	}
	now := metav1.Now()
	err := s.effects.PatchStatus(ctx, victim, map[string]any{"conditions": []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: victim.Generation, LastTransitionTime: now,
		Reason: corev1.PodReasonPreemptionByScheduler, Message: prof.Name + ": preempting to accommodate a higher priority pod",
	}}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write its DisruptionTarget condition: %w", err)
	}
	err = s.effects.Delete(ctx, victim)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	s.event(prof, victim, corev1.EventTypeNormal, "Preempted", "Preempting", fmt.Sprintf("Preempted by pod %v on node %v", p.UID, node))
	return nil
}

// report has it written to a pod why it waits, unless that stands there already.
func (s *Scheduler) report(ctx context.Context, prof *decision.Compiled, p *corev1.Pod, reason, message, nominated string, event bool) {
	s.reports.Submit(ctx, p.UID, func(ctx context.Context, again bool) {
		if event {
			s.event(prof, p, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", message)
		}
		status := report.Unscheduled(p, reason, message, nominated, again)
		if status == nil {
			return
		}
		if err := s.effects.PatchStatus(ctx, p, status); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			s.cfg.Logger.WarnContext(ctx, "the reason why a pod waits could not be written to it", "kind", "Pod", "namespace", p.Namespace,
				"name", p.Name, "error", err)
		}
	})
}

func (s *Scheduler) event(prof *decision.Compiled, p runtime.Object, kind, reason, action, note string) {
	if s.cfg.Events != nil {
		if len(note) > 1024 { // the API's bound
			note = note[:1021] + "..."
		}
		s.cfg.Events(prof.Name).Eventf(p, nil, kind, reason, action, "%s", note)
	}
}
