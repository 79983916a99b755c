// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of conditions; kubectl rollout status goes by some of them.
const (
	reasonUpdated      = "ReplicaSetUpdated"
	reasonCreateFailed = "ReplicaSetCreateError"
	reasonCreated      = "NewReplicaSetCreated"
	reasonFound        = "FoundNewReplicaSet"
	reasonAvailable    = "NewReplicaSetAvailable"
	reasonTimedOut     = "ProgressDeadlineExceeded"
	reasonPaused       = "DeploymentPaused"
	reasonResumed      = "DeploymentResumed"
)

func condition(s *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

// setCondition leaves a condition of the same status and reason as it is: its
// times tell when it came about.
func setCondition(s *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string,
	now time.Time,
) {
	c := appsv1.DeploymentCondition{
		Type: kind, Status: status, Reason: reason, Message: message,
		LastUpdateTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}
	if former := condition(s, kind); former != nil {
		if former.Status == status && former.Reason == reason {
			return
		}
		if former.Status == status {
			c.LastTransitionTime = former.LastTransitionTime
		}
	}
	dropCondition(s, kind)
	s.Conditions = append(s.Conditions, c)
}

func dropCondition(s *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == kind })
}

// countStatus is the status as the sets have it, with the Available condition.
func countStatus(d *appsv1.Deployment, s sets, now time.Time) appsv1.DeploymentStatus {
	all := s.all()
	next := appsv1.DeploymentStatus{
		ObservedGeneration:  d.Generation,
		Replicas:            sum(all, actual),
		ReadyReplicas:       sum(all, ready),
		AvailableReplicas:   sum(all, available),
		UnavailableReplicas: max(sum(all, wanted)-sum(all, available), 0),
		TerminatingReplicas: terminating(all),
		CollisionCount:      d.Status.CollisionCount,
		Conditions:          slices.Clone(d.Status.Conditions),
	}
	if s.current != nil {
		next.UpdatedReplicas = s.current.Status.Replicas
	}
	if next.AvailableReplicas >= *d.Spec.Replicas-maxUnavailable(d) {
		setCondition(&next, appsv1.DeploymentAvailable, corev1.ConditionTrue, "MinimumReplicasAvailable", "Deployment has minimum availability.",
			now)
	} else {
		setCondition(&next, appsv1.DeploymentAvailable, corev1.ConditionFalse, "MinimumReplicasUnavailable",
			"Deployment does not have minimum availability.", now)
	}
	return next
}

// terminating is nil as long as a set that was synced doesn't say its number.
func terminating(all []*appsv1.ReplicaSet) *int32 {
	n := new(int32)
	for _, rs := range all {
		switch {
		case rs.Status.TerminatingReplicas != nil:
			*n += *rs.Status.TerminatingReplicas
		case rs.Status.ObservedGeneration != 0:
			return nil
		}
	}
	return n
}

func complete(d *appsv1.Deployment, s *appsv1.DeploymentStatus) bool {
	want := *d.Spec.Replicas
	return s.UpdatedReplicas == want && s.Replicas == want && s.AvailableReplicas == want && s.ObservedGeneration >= d.Generation
}

// progressed compares with the status before: more new pods, fewer old ones, more
// of them ready or available.
func progressed(before, now *appsv1.DeploymentStatus) bool {
	return now.UpdatedReplicas > before.UpdatedReplicas ||
		now.Replicas-now.UpdatedReplicas < before.Replicas-before.UpdatedReplicas ||
		now.ReadyReplicas > before.ReadyReplicas ||
		now.AvailableReplicas > before.AvailableReplicas
}

// timedOut: no progress since the condition was last updated, for longer than the
// deadline. A rollout that succeeded has nothing to time out: the condition of the
// next one may just not have been written yet.
func timedOut(d *appsv1.Deployment, s *appsv1.DeploymentStatus, now time.Time) bool {
	c := condition(s, appsv1.DeploymentProgressing)
	switch {
	case c == nil || c.Reason == reasonAvailable:
		return false
	case c.Reason == reasonTimedOut:
		return true
	}
	return c.LastUpdateTime.Add(deadline(d)).Before(now)
}

func deadline(d *appsv1.Deployment) time.Duration {
	return time.Duration(*d.Spec.ProgressDeadlineSeconds) * time.Second
}

// rolloutStatus is the status during and after a rollout. d has the status of
// before, with the conditions that this plan has set already.
func rolloutStatus(d *appsv1.Deployment, s sets, now time.Time) appsv1.DeploymentStatus {
	next := countStatus(d, s, now)
	if !hasDeadline(d) {
		dropCondition(&next, appsv1.DeploymentProgressing)
	} else {
		estimateProgress(d, s, &next, now)
	}
	if failure := setFailure(s); failure != nil {
		setFailureCondition(&next, *failure)
	} else {
		dropCondition(&next, appsv1.DeploymentReplicaFailure)
	}
	return next
}

func estimateProgress(d *appsv1.Deployment, s sets, next *appsv1.DeploymentStatus, now time.Time) {
	former := condition(&d.Status, appsv1.DeploymentProgressing)
	if next.Replicas == next.UpdatedReplicas && former != nil && former.Reason == reasonAvailable {
		return // nothing rolls out: a pod that dies later is no lack of progress
	}
	subject := fmt.Sprintf("Deployment %q", d.Name)
	if s.current != nil {
		subject = fmt.Sprintf("ReplicaSet %q", s.current.Name)
	}
	const kind = appsv1.DeploymentProgressing
	switch {
	case complete(d, next):
		setCondition(next, kind, corev1.ConditionTrue, reasonAvailable, subject+" has successfully progressed.", now)
	case progressed(&d.Status, next):
		// The same reason again must still move lastUpdateTime, from which the
		// deadline is counted; so the former condition is dropped first.
		transition := metav1.NewTime(now)
		if former != nil && former.Status == corev1.ConditionTrue {
			transition = former.LastTransitionTime
		}
		dropCondition(next, kind)
		setCondition(next, kind, corev1.ConditionTrue, reasonUpdated, subject+" is progressing.", now)
		condition(next, kind).LastTransitionTime = transition
	case timedOut(d, next, now):
		setCondition(next, kind, corev1.ConditionFalse, reasonTimedOut, subject+" has timed out progressing.", now)
	}
}

// setFailure is a failure to create or delete pods, of the new set before the old ones.
func setFailure(s sets) *appsv1.ReplicaSetCondition {
	all := s.old
	if s.current != nil {
		all = append([]*appsv1.ReplicaSet{s.current}, s.old...)
	}
	for _, rs := range all {
		for i := range rs.Status.Conditions {
			if rs.Status.Conditions[i].Type == appsv1.ReplicaSetReplicaFailure {
				return &rs.Status.Conditions[i]
			}
		}
	}
	return nil
}

func setFailureCondition(s *appsv1.DeploymentStatus, c appsv1.ReplicaSetCondition) {
	setCondition(s, appsv1.DeploymentReplicaFailure, c.Status, c.Reason, c.Message, c.LastTransitionTime.Time)
}

// nextCheck is when lack of progress would have to be noticed, though nothing
// changes until then; 0 = never.
func nextCheck(d *appsv1.Deployment, s *appsv1.DeploymentStatus, now time.Time) time.Duration {
	c := condition(s, appsv1.DeploymentProgressing)
	if !hasDeadline(d) || c == nil || c.Reason == reasonTimedOut || c.Reason == reasonAvailable || complete(d, s) {
		return 0
	}
	// One second on top, because condition times have whole seconds.
	return max(c.LastUpdateTime.Add(deadline(d)).Sub(now), 0) + time.Second
}
