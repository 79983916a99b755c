// SPDX-License-Identifier: Apache-2.0

package job

import (
	"cmp"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
)

const (
	// maxUncounted bounds the UIDs that a status carries.
	maxUncounted = 500
	// burst is how many pods one reconcile creates or deletes at most.
	burst = 500
)

// situation is everything that a plan is made from.
type situation struct {
	job  *batchv1.Job
	pods []*corev1.Pod
	// settled: the cache shows all pods that we created and deleted.
	settled bool
	// manage: pods may be created and deleted now. Without it only accounts are made.
	manage bool
	// released are pods whose finalizer we removed, and removed those that we deleted,
	// though the cache may not show it yet.
	released, removed map[types.UID]bool
	backoff           backoff
	now               time.Time
}

// plan is what to do, in this order: pods first, then the status, then finalizers
// of pods that the status accounts for. A pod can't vanish before its finalizer is
// gone, so each is counted exactly once, wherever a crash comes between.
type plan struct {
	create []creation
	remove []*corev1.Pod
	// forget: the removed pods lose their finalizer first, so that they don't count.
	forget  bool
	status  *batchv1.Job // nil: unchanged
	release []*corev1.Pod
	backoff backoff
	wait    time.Duration // look again after this long; 0 = only on changes
	events  []event
	// rest: not all pods fitted into the accounts.
	rest bool
	// handled counts failed pods that are accounted for now, by what a rule of the failure policy did with them.
	handled map[batchv1.PodFailurePolicyAction]int
}

// creation is one pod to create.
type creation struct {
	index int // -1: the Job has no indexes
	// replaces is the failed pod of the same index whose failures are carried on.
	replaces *corev1.Pod
}

type event struct{ kind, reason, message string }

// planner carries a plan that is being made.
type planner struct {
	situation
	spec   *batchv1.JobSpec
	status batchv1.JobStatus
	plan   plan

	active, terminating, ready int32
	activePods                 []*corev1.Pod
	succeeded, failed          int32
	newSucceeded, newFailed    []*corev1.Pod
	// Of an indexed Job.
	before, done, lost indexes
	delayed            map[int]*corev1.Pod
	verdict            *batchv1.JobCondition
}

func indexed(spec *batchv1.JobSpec) bool {
	return ptr.Deref(spec.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.IndexedCompletion
}

func suspended(spec *batchv1.JobSpec) bool { return ptr.Deref(spec.Suspend, false) }

// finished reports whether the Job has ended for good.
func finished(job *batchv1.Job) bool {
	return isTrue(job.Status.Conditions, batchv1.JobComplete) || isTrue(job.Status.Conditions, batchv1.JobFailed)
}

func find(conditions []batchv1.JobCondition, kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range conditions {
		if conditions[i].Type == kind {
			return &conditions[i]
		}
	}
	return nil
}

func isTrue(conditions []batchv1.JobCondition, kind batchv1.JobConditionType) bool {
	c := find(conditions, kind)
	return c != nil && c.Status == corev1.ConditionTrue
}

// decide makes the plan for a Job that has not finished.
func decide(in situation) plan {
	p := &planner{situation: in, spec: &in.job.Spec, status: *in.job.Status.DeepCopy()}
	p.take()
	p.judge()
	switch {
	case p.verdict != nil:
		p.endActive()
	case p.manage && p.settled && p.job.DeletionTimestamp == nil:
		p.balance()
	}
	p.complete()
	p.account()
	p.finish()
	return p.plan
}

// tracked reports whether a pod still waits to be counted.
func (p *planner) tracked(pod *corev1.Pod) bool {
	return hasFinalizer(pod) && !p.released[pod.UID]
}

func hasFinalizer(pod *corev1.Pod) bool {
	return slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer)
}

// hasFailed: a pod that is deleted while it runs counts as failed at once, unless
// the Job wants to wait for its end.
func (p *planner) hasFailed(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed {
		return true
	}
	return !p.waitsForEnd() && pod.DeletionTimestamp != nil && pod.Status.Phase != corev1.PodSucceeded
}

// hasSucceeded: a pod that was deleted while it ran, and is written down as failed, stays so however it ends.
func (p *planner) hasSucceeded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded && !slices.Contains(p.status.UncountedTerminatedPods.Failed, pod.UID)
}

func (p *planner) waitsForEnd() bool {
	return ptr.Deref(p.spec.PodReplacementPolicy, batchv1.TerminatingOrFailed) == batchv1.Failed
}

// validIndex: pods of an indexed Job without a proper index are nobody's.
func (p *planner) validIndex(pod *corev1.Pod) bool {
	i := indexOf(pod)
	return !indexed(p.spec) || (i >= 0 && i < int(*p.spec.Completions))
}

// take counts what there is.
func (p *planner) take() {
	if p.status.UncountedTerminatedPods == nil {
		p.status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	p.moveCounted()
	uncounted := p.status.UncountedTerminatedPods
	for _, pod := range p.pods {
		switch {
		case controllers.PodActive(pod) && !p.removed[pod.UID]:
			p.activePods = append(p.activePods, pod)
			if controllers.PodReady(pod) {
				p.ready++
			}
		case !controllers.PodFinished(pod):
			p.terminating++
		}
		if !p.tracked(pod) || !p.validIndex(pod) {
			continue
		}
		if p.hasSucceeded(pod) && !slices.Contains(uncounted.Succeeded, pod.UID) {
			p.newSucceeded = append(p.newSucceeded, pod)
		}
		if p.hasFailed(pod) && !slices.Contains(uncounted.Failed, pod.UID) {
			p.newFailed = append(p.newFailed, pod)
		}
	}
	p.active = int32(len(p.activePods))
	p.succeeded = p.status.Succeeded + int32(len(p.newSucceeded)+len(uncounted.Succeeded))
	p.failed = p.status.Failed + int32(len(uncounted.Failed))
	for _, pod := range p.newFailed {
		if rule(p.spec.PodFailurePolicy, pod).counts {
			p.failed++
		}
	}
	p.plan.backoff = p.backoff.after(p.newSucceeded, p.newFailed)
	if p.status.StartTime == nil && !suspended(p.spec) {
		p.status.StartTime = ptr.To(metav1.NewTime(p.now))
	}
	if indexed(p.spec) {
		p.takeIndexes()
	}
}

// moveCounted moves pods whose finalizer is gone from the list of the uncounted
// into the counters.
func (p *planner) moveCounted() {
	waiting := map[types.UID]bool{}
	for _, pod := range p.pods {
		waiting[pod.UID] = p.tracked(pod)
	}
	move := func(uids []types.UID) ([]types.UID, int32) {
		left := controllers.Filter(uids, func(uid types.UID) bool { return waiting[uid] })
		return left, int32(len(uids) - len(left))
	}
	var n int32
	u := p.status.UncountedTerminatedPods
	u.Succeeded, n = move(u.Succeeded)
	p.status.Succeeded += n
	u.Failed, n = move(u.Failed)
	p.status.Failed += n
}

func (p *planner) takeIndexes() {
	completions := int(*p.spec.Completions)
	p.before = parseIndexes(p.status.CompletedIndexes, completions)
	p.done = p.before.with(p.indexesOf(func(pod *corev1.Pod) bool {
		return p.tracked(pod) && p.validIndex(pod) && p.hasSucceeded(pod)
	})...)
	p.succeeded = int32(p.done.count())
	if p.spec.BackoffLimitPerIndex == nil {
		return
	}
	p.lost = parseIndexes(ptr.Deref(p.status.FailedIndexes, ""), completions).with(p.indexesOf(func(pod *corev1.Pod) bool {
		return p.tracked(pod) && p.validIndex(pod) && p.indexLost(pod)
	})...)
	p.delayed = p.replaceable()
}

// indexesOf are the indexes of the pods that are chosen, in the order of the pods.
func (p *planner) indexesOf(chosen func(*corev1.Pod) bool) (out []int) {
	for _, pod := range p.pods {
		if chosen(pod) {
			out = append(out, indexOf(pod))
		}
	}
	return out
}

// indexLost: this failure was one too many for its index.
func (p *planner) indexLost(pod *corev1.Pod) bool {
	if !p.hasFailed(pod) {
		return false
	}
	r := rule(p.spec.PodFailurePolicy, pod)
	counted, _ := failuresOf(pod)
	return r.action == batchv1.PodFailurePolicyActionFailIndex || (r.counts && counted >= int(*p.spec.BackoffLimitPerIndex))
}

// replaceable are the last failed pods of indexes that are to be tried again. They
// keep their finalizer until their successor exists: it inherits their count.
func (p *planner) replaceable() map[int]*corev1.Pod {
	busy := map[int]bool{}
	for _, pod := range p.activePods {
		busy[indexOf(pod)] = true
	}
	last := map[int]*corev1.Pod{}
	for _, pod := range p.pods {
		i := indexOf(pod)
		if !p.tracked(pod) || !p.validIndex(pod) || !p.hasFailed(pod) || p.done.has(i) || p.lost.has(i) || busy[i] {
			continue
		}
		if was := last[i]; was == nil || laterFailure(was, pod) {
			last[i] = pod
		}
	}
	return last
}

func laterFailure(a, b *corev1.Pod) bool {
	countedA, ignoredA := failuresOf(a)
	countedB, ignoredB := failuresOf(b)
	return cmp.Or(cmp.Compare(countedA+ignoredA, countedB+ignoredB), finishedAt(a).Compare(finishedAt(b))) <= 0
}

func (p *planner) condition(kind batchv1.JobConditionType, status corev1.ConditionStatus, reason, message string) *batchv1.JobCondition {
	now := metav1.NewTime(p.now)
	return &batchv1.JobCondition{Type: kind, Status: status, LastProbeTime: now, LastTransitionTime: now, Reason: reason, Message: message}
}

func (p *planner) fail(reason, message string) {
	p.verdict = p.condition(batchv1.JobFailureTarget, corev1.ConditionTrue, reason, message)
}

// judge decides whether the Job is to end, in failure or by its success policy.
func (p *planner) judge() {
	if c := find(p.status.Conditions, batchv1.JobSuccessCriteriaMet); c != nil && c.Status == corev1.ConditionTrue {
		p.verdict = c.DeepCopy()
		return
	}
	if c := find(p.status.Conditions, batchv1.JobFailureTarget); c != nil && c.Status == corev1.ConditionTrue {
		p.verdict = c.DeepCopy()
		return
	}
	for _, pod := range p.pods {
		if p.spec.PodFailurePolicy != nil && p.hasFailed(pod) {
			if r := rule(p.spec.PodFailurePolicy, pod); r.message != "" {
				p.fail(batchv1.JobReasonPodFailurePolicy, r.message)
				return
			}
		}
	}
	switch {
	case p.failed > *p.spec.BackoffLimit || p.restartsBeyondLimit():
		p.fail(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
		return
	case p.pastDeadline():
		p.fail(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
		return
	}
	if indexed(p.spec) {
		p.judgeIndexes()
	}
}

func (p *planner) judgeIndexes() {
	if lost := p.lost.count(); p.spec.BackoffLimitPerIndex != nil && lost > 0 {
		switch {
		case p.spec.MaxFailedIndexes != nil && lost > int(*p.spec.MaxFailedIndexes):
			p.fail(batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes")
			return
		case lost+p.done.count() >= int(*p.spec.Completions):
			p.fail(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
			return
		}
	}
	if message, met := succeededEarly(p.spec.SuccessPolicy, p.done, int(*p.spec.Completions)); met {
		p.verdict = p.condition(batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue, batchv1.JobReasonSuccessPolicy, message)
	}
}

// restartsBeyondLimit: with restartPolicy OnFailure it is containers that are
// restarted, not pods that are replaced.
func (p *planner) restartsBeyondLimit() bool {
	if p.spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	var restarts int32
	for _, pod := range p.pods {
		if pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodPending {
			continue
		}
		for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			restarts += s.RestartCount
		}
	}
	if *p.spec.BackoffLimit == 0 {
		return restarts > 0
	}
	return restarts >= *p.spec.BackoffLimit
}

func (p *planner) pastDeadline() bool {
	if p.spec.ActiveDeadlineSeconds == nil || p.status.StartTime == nil || suspended(p.spec) {
		return false
	}
	left := p.status.StartTime.Add(time.Duration(*p.spec.ActiveDeadlineSeconds) * time.Second).Sub(p.now)
	if left > 0 {
		p.look(left)
	}
	return left <= 0
}

func (p *planner) look(after time.Duration) {
	if p.plan.wait == 0 || after < p.plan.wait {
		p.plan.wait = after
	}
}

// endActive deletes all pods that still run, once the Job is decided.
func (p *planner) endActive() {
	p.drop(p.activePods)
	if !p.settled {
		// A pod that we created may be unseen; it would be left behind uncounted.
		p.verdict = nil
	}
}

// drop deletes active pods.
func (p *planner) drop(pods []*corev1.Pod) {
	if !p.manage {
		return
	}
	p.plan.remove = append(p.plan.remove, pods...)
	for _, pod := range pods {
		p.active--
		p.terminating++
		if controllers.PodReady(pod) {
			p.ready--
		}
	}
}

// balance creates or deletes pods until as many run as should.
func (p *planner) balance() {
	if suspended(p.spec) {
		p.plan.forget = true
		p.drop(p.activePods)
		return
	}
	want := *p.spec.Parallelism
	switch {
	case p.spec.Completions == nil && p.succeeded > 0:
		want = p.active // one has succeeded: the others finish, none is added
	case p.spec.Completions != nil:
		want = max(min(*p.spec.Completions-p.succeeded, want), 0)
	}
	if surplus := p.surplus(int(max(p.active-want, 0))); len(surplus) > 0 {
		p.plan.forget = true
		p.drop(surplus[:min(len(surplus), burst)])
		return
	}
	missing := want - p.active
	if p.waitsForEnd() {
		missing -= p.terminating
	}
	if missing > 0 {
		p.add(int(min(missing, burst)))
	}
}

// surplus are active pods to delete: second ones of an index, then the least
// advanced until there are enough.
func (p *planner) surplus(least int) []*corev1.Pod {
	rest := slices.Clone(p.activePods)
	slices.SortStableFunc(rest, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(advance(a), advance(b)), b.CreationTimestamp.Compare(a.CreationTimestamp.Time))
	})
	var drop []*corev1.Pod
	if indexed(p.spec) {
		kept := map[int]bool{}
		var unique []*corev1.Pod
		for _, pod := range slices.Backward(rest) { // the most advanced of each index stays
			if i := indexOf(pod); !p.validIndex(pod) || kept[i] {
				drop = append(drop, pod)
			} else {
				kept[i] = true
				unique = append(unique, pod)
			}
		}
		slices.Reverse(unique)
		rest = unique
	}
	if more := least - len(drop); more > 0 {
		drop = append(drop, rest[:min(more, len(rest))]...)
	}
	return drop
}

func advance(pod *corev1.Pod) int {
	n := 0
	if pod.Spec.NodeName != "" {
		n++
	}
	if pod.Status.Phase == corev1.PodRunning {
		n += 2
	}
	if controllers.PodReady(pod) {
		n += 4
	}
	return n
}

func (p *planner) add(n int) {
	perIndex := p.spec.BackoffLimitPerIndex != nil
	if left := p.plan.backoff.left(p.now); left > 0 && !perIndex {
		p.look(left)
		return
	}
	if !indexed(p.spec) {
		for range n {
			p.plan.create = append(p.plan.create, creation{index: -1})
		}
	} else {
		p.addIndexes(n)
	}
	p.active += int32(len(p.plan.create))
}

func (p *planner) addIndexes(n int) {
	taken := p.done.union(p.lost).with(p.indexesOf(func(pod *corev1.Pod) bool {
		running := controllers.PodActive(pod) && !p.removed[pod.UID]
		return indexOf(pod) >= 0 && (running || (p.waitsForEnd() && controllers.PodTerminating(pod)))
	})...)
	for _, i := range taken.missing(n, int(*p.spec.Completions)) {
		replaces := p.delayed[i]
		if replaces != nil {
			counted, ignored := failuresOf(replaces)
			if left := (backoff{counted + ignored + 1, finishedAt(replaces)}).left(p.now); left > 0 {
				p.look(left)
				continue
			}
		}
		p.plan.create = append(p.plan.create, creation{index: i, replaces: replaces})
	}
}

// complete notices success, and the turns of suspension.
func (p *planner) complete() {
	if p.verdict != nil || !p.manage || !p.settled || p.job.DeletionTimestamp != nil {
		return
	}
	enough := p.succeeded > 0
	if p.spec.Completions != nil {
		enough = p.succeeded >= *p.spec.Completions
	}
	if enough && p.active == 0 {
		p.verdict = p.condition(batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue, batchv1.JobReasonCompletionsReached,
			"Reached expected number of succeeded pods")
		return
	}
	c := find(p.status.Conditions, batchv1.JobSuspended)
	switch was := c != nil && c.Status == corev1.ConditionTrue; {
	case suspended(p.spec) && !was:
		p.set(p.condition(batchv1.JobSuspended, corev1.ConditionTrue, "JobSuspended", "Job suspended"))
		p.plan.events = append(p.plan.events, event{corev1.EventTypeNormal, "Suspended", "Job suspended"})
	case !suspended(p.spec) && was:
		p.set(p.condition(batchv1.JobSuspended, corev1.ConditionFalse, "JobResumed", "Job resumed"))
		p.plan.events = append(p.plan.events, event{corev1.EventTypeNormal, "Resumed", "Job resumed"})
		p.status.StartTime = ptr.To(metav1.NewTime(p.now))
	}
}

func (p *planner) set(c *batchv1.JobCondition) {
	if there := find(p.status.Conditions, c.Type); there != nil {
		*there = *c
		return
	}
	p.status.Conditions = append(p.status.Conditions, *c)
}

// account puts ended pods into the list of the uncounted; they may go once that is
// written.
func (p *planner) account() {
	u := p.status.UncountedTerminatedPods
	failing := p.verdict != nil && p.verdict.Type == batchv1.JobFailureTarget
	var newIndexes []int
	for _, pod := range p.pods {
		if !p.tracked(pod) || !p.mayRelease(pod) {
			continue
		}
		if len(u.Succeeded)+len(u.Failed)+len(newIndexes) >= maxUncounted {
			p.plan.rest = true
			break
		}
		p.plan.release = append(p.plan.release, pod)
		if action := rule(p.spec.PodFailurePolicy, pod).action; action != "" && p.hasFailed(pod) && !slices.Contains(u.Failed, pod.UID) {
			if p.plan.handled == nil {
				p.plan.handled = map[batchv1.PodFailurePolicyAction]int{}
			}
			p.plan.handled[action]++
		}
		switch {
		case !p.validIndex(pod):
		case p.hasSucceeded(pod):
			if indexed(p.spec) {
				if !p.before.has(indexOf(pod)) {
					newIndexes = append(newIndexes, indexOf(pod))
				}
			} else if !slices.Contains(u.Succeeded, pod.UID) {
				u.Succeeded = append(u.Succeeded, pod.UID)
			}
		case (p.hasFailed(pod) || failing) && !slices.Contains(u.Failed, pod.UID) && rule(p.spec.PodFailurePolicy, pod).counts:
			u.Failed = append(u.Failed, pod.UID)
		}
	}
	if indexed(p.spec) {
		done := p.before.with(newIndexes...)
		p.status.CompletedIndexes = done.String()
		p.status.Succeeded = int32(done.count())
		if p.spec.BackoffLimitPerIndex != nil {
			p.status.FailedIndexes = ptr.To(p.lost.String())
		}
	}
}

func (p *planner) mayRelease(pod *corev1.Pod) bool {
	if p.job.DeletionTimestamp != nil || p.verdict != nil || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if !p.hasFailed(pod) {
		return false
	}
	waits := p.delayed[indexOf(pod)]
	return waits == nil || waits.UID != pod.UID
}

// finish writes the verdict down: first what the Job is heading for, and when all
// pods have ended and are counted, that it is over.
func (p *planner) finish() {
	p.status.Active, p.status.Ready, p.status.Terminating = p.active, &p.ready, &p.terminating
	if p.verdict != nil {
		if !isTrue(p.status.Conditions, p.verdict.Type) {
			p.set(p.verdict)
		}
		u := p.status.UncountedTerminatedPods
		if len(u.Succeeded)+len(u.Failed)+len(p.plan.release) == 0 && !p.plan.rest && p.terminating == 0 && p.active == 0 {
			p.over()
		}
	}
	if !equality.Semantic.DeepEqual(p.status, p.job.Status) {
		p.plan.status = p.job.DeepCopy()
		p.plan.status.Status = p.status
	}
}

func (p *planner) over() {
	if p.verdict.Type == batchv1.JobFailureTarget {
		p.set(p.condition(batchv1.JobFailed, corev1.ConditionTrue, p.verdict.Reason, p.verdict.Message))
		p.plan.events = append(p.plan.events, event{corev1.EventTypeWarning, p.verdict.Reason, p.verdict.Message})
		return
	}
	done := p.condition(batchv1.JobComplete, corev1.ConditionTrue, p.verdict.Reason, p.verdict.Message)
	p.set(done)
	p.status.CompletionTime = &done.LastTransitionTime
	if p.spec.Completions != nil && p.status.Succeeded > *p.spec.Completions {
		p.plan.events = append(p.plan.events,
			event{corev1.EventTypeWarning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached"})
	}
	p.plan.events = append(p.plan.events, event{corev1.EventTypeNormal, "Completed", "Job completed"})
}
