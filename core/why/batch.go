// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/reply"
)

func (e *explainer) job(name string) *Answer {
	j, ok := facts.Find(e.Jobs, e.in, name)
	if !ok {
		return nil
	}
	return e.explainJob(j)
}

func (e *explainer) explainJob(j *batchv1.Job) *Answer {
	for _, c := range j.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == batchv1.JobComplete:
			return reply.Well("it has ended, successfully")
		case c.Type == batchv1.JobFailed:
			return e.failedJob(j, c)
		case c.Type == batchv1.JobSuspended:
			return reply.Stuck("it is suspended").Or("let it go on", `kubectl patch job %s -n %s --type=merge -p '{"spec":{"suspend":false}}'`,
				j.Name, j.Namespace)
		}
	}
	if by := j.Spec.ManagedBy; by != nil && *by != batchv1.JobControllerName {
		return reply.Stuck("it is left to the controller %s (spec.managedBy), which has not ended it", *by)
	}
	if a := e.making(made{"Job", j.Name, j.UID, int(wanted(j.Spec.Parallelism)), ""}); !a.Well {
		return a.Of("it has not ended")
	}
	return reply.Well("its pods run")
}

// failedJob: no more pods are made for it. What the last of them said is kept nowhere else.
func (e *explainer) failedJob(j *batchv1.Job, c batchv1.JobCondition) *Answer {
	a := reply.Stuck("it has failed for good: %s", strings.TrimPrefix(c.Reason+": "+c.Message, ": "))
	var last *corev1.Pod
	for _, p := range e.Pods {
		if metav1.IsControlledBy(p, j) && p.Status.Phase == corev1.PodFailed &&
			(last == nil || last.CreationTimestamp.Before(&p.CreationTimestamp)) {
			last = p
		}
	}
	if last != nil {
		a.More("its last pod %s: %s", last.Name, strings.TrimPrefix(e.failed(last).Cause, "it has failed for good: "))
		a.Or("read what its last pod wrote", "kubectl logs %s -n %s", last.Name, last.Namespace)
	}
	if of := metav1.GetControllerOfNoCopy(j); of != nil && of.Kind == "CronJob" {
		return a.Or("try it once more", "kubectl create job %s --from=cronjob/%s -n %s", cutName(j.Name)+"-again", of.Name, j.Namespace)
	}
	again := "make it anew, and so have it try again"
	anew := "sed -e '/controller-uid:/d' -e '/job-name:/d' -e '/^  selector:/,/^  [a-z]*:$/{/^  selector:/d;/matchLabels:/d}'"
	if c.Reason == batchv1.JobReasonDeadlineExceeded {
		again, anew = "make it anew, without a deadline", anew+" -e '/^  activeDeadlineSeconds:/d'"
	}
	return a.Or(again, "kubectl get job %s -n %s -o yaml | %s | kubectl replace --force -f -", j.Name,
		j.Namespace, facts.Words(anew))
}

func cutName(name string) string { return name[:min(len(name), 56)] }

// cronJob: why no Job is made of it.
func (e *explainer) cronJob(name string) *Answer {
	c, ok := facts.Find(e.CronJobs, e.in, name)
	if !ok {
		return nil
	}
	if c.Spec.Suspend != nil && *c.Spec.Suspend {
		return reply.Stuck("it is suspended: no job is made of it").
			Or("let it go on", `kubectl patch cronjob %s -n %s --type=merge -p '{"spec":{"suspend":false}}'`, name, e.in)
	}
	schedule := c.Spec.Schedule
	if c.Spec.TimeZone != nil {
		schedule = "TZ=" + *c.Spec.TimeZone + " " + schedule
	}
	times, err := cron.ParseStandard(schedule)
	if err != nil {
		return reply.Stuck("its schedule %q names no time: %v", c.Spec.Schedule, err).
			Or("give it another", `kubectl patch cronjob %s -n %s --type=merge -p '{"spec":{"schedule":"*/5 * * * *"}}'`, name, e.in)
	}
	if a := e.lastJob(c); a != nil {
		return a
	}
	if ev := e.Last("CronJob", e.in, name, "FailedCreate"); ev != nil && after(ev, c.Status.LastScheduleTime) {
		if a := e.refusedBy(ev.Message); a != nil {
			return a
		}
		return reply.Stuck("its job could not be made: %s", strings.TrimPrefix(ev.Message, "Error creating job: "))
	}
	if ev := e.Last("CronJob", e.in, name, "TooManyMissedTimes", "MissSchedule"); ev != nil && after(ev, c.Status.LastScheduleTime) {
		return reply.Stuck("it missed its time: %s", ev.Message).
			Or("start it now", "kubectl create job %s --from=cronjob/%s -n %s", cutName(name)+"-now", name, e.in)
	}
	next := times.Next(e.Now)
	if next.IsZero() {
		return reply.Stuck("its schedule %q names no time that will ever come", c.Spec.Schedule).
			Or("give it another", `kubectl patch cronjob %s -n %s --type=merge -p '{"spec":{"schedule":"*/5 * * * *"}}'`, name, e.in)
	}
	since := c.CreationTimestamp.Time
	if c.Status.LastScheduleTime != nil {
		since = c.Status.LastScheduleTime.Time
	}
	if due := times.Next(since); due.Before(e.Now.Add(-time.Minute)) {
		return reply.Stuck("its job was due at %s, and its controller has made none", due.UTC().Format("2006-01-02 15:04 UTC"))
	}
	return reply.Well("its next job is due at %s", next.UTC().Format("2006-01-02 15:04 UTC"))
}

// after says whether an event is younger than a time; nil = never was.
func after(ev *corev1.Event, t *metav1.Time) bool { return t == nil || facts.When(ev).After(t.Time) }

// lastJob is the job that keeps the next one from being made, or that failed; nil = none does.
func (e *explainer) lastJob(c *batchv1.CronJob) *Answer {
	var last *batchv1.Job
	for _, j := range e.Jobs {
		if metav1.IsControlledBy(j, c) && (last == nil || last.CreationTimestamp.Before(&j.CreationTimestamp)) {
			last = j
		}
	}
	if last == nil {
		return nil
	}
	a := e.explainJob(last)
	switch {
	case len(c.Status.Active) > 0 && c.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && !a.Well:
		a.Of("no job is made while another one is there (concurrencyPolicy: Forbid): job %s", last.Name)
		return a.Or("end that job", "kubectl delete job %s -n %s", last.Name, last.Namespace)
	case !a.Well:
		return a.Of("its last job %s", last.Name)
	}
	return nil
}

// quota: what is used up of it.
func (e *explainer) quota(name string) *Answer {
	q, ok := facts.Find(e.Quotas, e.in, name)
	if !ok {
		return nil
	}
	if len(q.Status.Hard) == 0 && len(q.Spec.Hard) > 0 {
		return reply.Stuck("nobody has counted yet what is used of it: until then it refuses everything that it limits")
	}
	var full, more []string
	for _, what := range sortedNames(q.Status.Hard) {
		hard, used := q.Status.Hard[what], q.Status.Used[what]
		if used.Cmp(hard) < 0 {
			continue
		}
		full = append(full, fmt.Sprintf("%s (%s of %s)", what, used.String(), hard.String()))
		twice := hard.DeepCopy()
		if twice.Add(hard); twice.IsZero() {
			twice.Set(1)
		}
		more = append(more, fmt.Sprintf("%q:%q", what, twice.String()))
	}
	refused := e.refusals("exceeded quota: " + name + ",")
	if len(full) == 0 && refused != nil {
		a := e.refusedPod(refused.Message, 1)
		return a.More("%s %s is refused", strings.ToLower(refused.InvolvedObject.Kind), refused.InvolvedObject.Name)
	}
	if len(full) == 0 {
		return reply.Well("it leaves room")
	}
	a := reply.Stuck("it is used up: %s", strings.Join(full, ", "))
	if refused != nil {
		a.More("refused: %s %s: %s", strings.ToLower(refused.InvolvedObject.Kind), refused.InvolvedObject.Name, refused.Message)
	}
	return a.Or("raise it", `kubectl patch resourcequota %s -n %s --type=merge -p '{"spec":{"hard":{%s}}}'`, name, e.in, facts.JSON(more))
}

// refusals is the youngest event of a creation that failed with a text; nil = none did.
func (e *explainer) refusals(text string) (found *corev1.Event) {
	for _, ev := range e.Events {
		if ev.InvolvedObject.Namespace == e.in && strings.HasPrefix(ev.Reason, "Failed") && strings.Contains(ev.Message, text) &&
			(found == nil || facts.When(ev).After(facts.When(found))) {
			found = ev
		}
	}
	return found
}
