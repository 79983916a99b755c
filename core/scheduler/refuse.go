// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/scheduler/decision"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
	"github.com/wasmplane/wasmplane/core/scheduler/report"
)

// reasonError is why a pod waits that could not be decided about.
const reasonError = "SchedulerError"

// gateTime is how long a pod is kept out of the cycles before that is written to it. Most claims that are
// made from templates, and most gangs, are whole sooner, which spares a write for each of their pods.
const gateTime = time.Second

// gate leaves a pod out of the cycles, and says why on it.
func (s *Scheduler) gate(ctx context.Context, prof *decision.Compiled, it *queue.Item, st *framework.Status) {
	pod := it.Info.Pod
	if st.Code == framework.Error {
		s.cfg.Logger.ErrorContext(ctx, "a plugin could not say whether a pod may be scheduled", "kind", "Pod", "namespace", pod.Namespace,
			"name", pod.Name, "error", st.Joined())
		s.queue.Errored(pod.UID)
	} else {
		why := &standing{profile: prof, pod: it.Info, by: []string{st.Plugin}, held: []string{st.Plugin}, asks: context.WithoutCancel(ctx)}
		s.queue.Gated(pod.UID, queue.Refusal{Interest: prof.Interest(why.by), Why: why})
	}
	s.reportGated(ctx, prof, pod, st.Joined())
}

// reportGated has it written to a pod what keeps it out of the cycles, once that has for gateTime.
func (s *Scheduler) reportGated(ctx context.Context, prof *decision.Compiled, p *corev1.Pod, message string) {
	s.reports.SubmitAfter(ctx, p.UID, gateTime, s.reason(prof, p, corev1.PodReasonSchedulingGated, message, "", false))
}

// refuse puts the pod back and says why, on the pod itself. A nomination is carried
// out first: the pod is tried again when its victims are gone.
func (s *Scheduler) refuse(ctx context.Context, prof *decision.Compiled, it *queue.Item, d *Decision, template string) {
	pod := it.Info.Pod
	if ctx.Err() != nil {
		return
	}
	node, begin, err := s.nominate(ctx, prof, it.Info, d)
	if err != nil {
		d.Whole = framework.AsStatus(err)
	}
	reason, message := corev1.PodReasonUnschedulable, d.Message()
	if st := d.Fatal(); st != nil {
		reason, message = reasonError, st.Joined()
		s.cfg.Logger.ErrorContext(ctx, "a pod could not be scheduled because of an error", "kind", "Pod", "namespace", pod.Namespace,
			"name", pod.Name, "error", message)
		s.queue.Errored(pod.UID)
	} else {
		s.queue.Failed(pod.UID, s.refusal(ctx, prof, it.Info, d, template))
	}
	s.report(ctx, prof, pod, reason, message, node, true)
	begin()
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

// report has it written to a pod why it waits, unless that stands there already.
func (s *Scheduler) report(ctx context.Context, prof *decision.Compiled, p *corev1.Pod, reason, message, nominated string, event bool) {
	s.reports.Submit(ctx, p.UID, s.reason(prof, p, reason, message, nominated, event))
}

// reason writes to a pod why it waits.
func (s *Scheduler) reason(prof *decision.Compiled, p *corev1.Pod, reason, message, nominated string, event bool) report.Write {
	return func(ctx context.Context, again bool) {
		if event {
			s.event(prof, p, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", message)
		}
		if nominated != s.nominated.Of(p.UID) {
			nominated = "" // not any more
		}
		status := report.Unscheduled(p, reason, message, nominated, again)
		if status == nil {
			return
		}
		if err := s.effects.PatchStatus(ctx, p, status); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			s.cfg.Logger.WarnContext(ctx, "the reason why a pod waits could not be written to it", "kind", "Pod", "namespace", p.Namespace,
				"name", p.Name, "error", err)
		}
	}
}

func (s *Scheduler) event(prof *decision.Compiled, p runtime.Object, kind, reason, action, note string) {
	if s.cfg.Events != nil {
		if len(note) > 1024 { // the API's bound
			note = note[:1021] + "..."
		}
		s.cfg.Events(prof.Name).Eventf(p, nil, kind, reason, action, "%s", note)
	}
}
