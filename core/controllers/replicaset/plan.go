// SPDX-License-Identifier: Apache-2.0

package replicaset

import (
	"cmp"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// burst is how many pods one reconcile creates or deletes at most.
const burst = 500

// decision is what one look at the pods asks for: either creations or deletions.
type decision struct {
	create int
	remove []*corev1.Pod
}

// decide compares the active pods with the wanted number. related are the pods of
// all sets with the same owner: where several of them share a node, their loss is
// felt least.
func decide(want int32, active, related []*corev1.Pod, now time.Time) decision {
	missing := int(want) - len(active)
	if missing >= 0 {
		return decision{create: min(missing, burst)}
	}
	return decision{remove: leastMissed(active, related, now)[:min(-missing, burst)]}
}

// leastMissed sorts pods so that those whose deletion costs least come first.
func leastMissed(active, related []*corev1.Pod, now time.Time) []*corev1.Pod {
	onNode := map[string]int{}
	for _, pod := range related {
		if controllers.PodActive(pod) {
			onNode[pod.Spec.NodeName]++
		}
	}
	sorted := slices.Clone(active)
	slices.SortStableFunc(sorted, func(a, b *corev1.Pod) int {
		return cmp.Or(
			compareBool(a.Spec.NodeName != "", b.Spec.NodeName != ""), // unassigned first
			cmp.Compare(phaseRank(a), phaseRank(b)),
			compareBool(controllers.PodReady(a), controllers.PodReady(b)), // not ready first
			cmp.Compare(deletionCost(a), deletionCost(b)),
			cmp.Compare(onNode[b.Spec.NodeName], onNode[a.Spec.NodeName]), // crowded nodes first
			compareAge(a, b, readySince(a), readySince(b), now),
			cmp.Compare(restarts(b, false), restarts(a, false)), // many restarts first
			cmp.Compare(restarts(b, true), restarts(a, true)),
			compareAge(a, b, a.CreationTimestamp, b.CreationTimestamp, now),
		)
	})
	return sorted
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func phaseRank(pod *corev1.Pod) int {
	switch pod.Status.Phase {
	case corev1.PodUnknown:
		return 1
	case corev1.PodRunning:
		return 2
	default: // it does not run
		return 0
	}
}

func deletionCost(pod *corev1.Pod) int32 {
	value, ok := pod.Annotations[corev1.PodDeletionCost]
	if !ok {
		return 0
	}
	return parseCost(value)
}

// parseCost takes what the API accepts: a 32 bit integer without plus sign or
// leading zeros; anything else counts as none.
func parseCost(value string) int32 {
	digits, sign := value, int64(1)
	if len(digits) > 1 && digits[0] == '-' {
		digits, sign = digits[1:], -1
	}
	if digits == "" || len(digits) > 10 || (len(digits) > 1 && digits[0] == '0') {
		return 0
	}
	var n int64
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return 0
		}
		n = n*10 + int64(c-'0')
	}
	if n *= sign; n > math.MaxInt32 || n < math.MinInt32 {
		return 0
	}
	return int32(n)
}

func readySince(pod *corev1.Pod) metav1.Time {
	if c := controllers.PodCondition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		return c.LastTransitionTime
	}
	return metav1.Time{}
}

func restarts(pod *corev1.Pod, sidecars bool) int32 {
	var most int32
	if !sidecars {
		for _, s := range pod.Status.ContainerStatuses {
			most = max(most, s.RestartCount)
		}
		return most
	}
	for _, c := range pod.Spec.InitContainers {
		if ptr.Deref(c.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways {
			continue
		}
		for _, s := range pod.Status.InitContainerStatuses {
			if s.Name == c.Name {
				most = max(most, s.RestartCount)
			}
		}
	}
	return most
}

// compareAge puts the younger first, on a logarithmic scale: pods of about the same
// age are told apart by their UIDs, which spreads deletions over failure domains.
func compareAge(a, b *corev1.Pod, at, bt metav1.Time, now time.Time) int {
	switch {
	case at.Equal(&bt):
		return 0
	case at.IsZero():
		return -1
	case bt.IsZero():
		return 1
	}
	return cmp.Or(cmp.Compare(ageRank(at, now), ageRank(bt, now)), cmp.Compare(a.UID, b.UID))
}

func ageRank(t metav1.Time, now time.Time) int64 {
	if age := now.Sub(t.Time); age > 0 {
		return int64(math.Log2(float64(age)))
	}
	return -1
}

// status is the set's status for these pods. wait is when it next changes by time
// alone, because a ready pod becomes available; 0 = never.
func status(rs *appsv1.ReplicaSet, active, terminating []*corev1.Pod, failure error,
	now time.Time,
) (s appsv1.ReplicaSetStatus, wait time.Duration) {
	s = *rs.Status.DeepCopy()
	s.ObservedGeneration = rs.Generation
	s.Replicas, s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas = int32(len(active)), 0, 0, 0
	s.TerminatingReplicas = ptr.To(int32(len(terminating)))
	template := labels.SelectorFromSet(rs.Spec.Template.Labels)
	for _, pod := range active {
		if template.Matches(labels.Set(pod.Labels)) {
			s.FullyLabeledReplicas++
		}
		if !controllers.PodReady(pod) {
			continue
		}
		s.ReadyReplicas++
		available, after := controllers.PodAvailable(pod, rs.Spec.MinReadySeconds, now)
		if available {
			s.AvailableReplicas++
		} else if after > 0 && (wait == 0 || after < wait) {
			wait = after
		}
	}
	s.Conditions = failureCondition(s.Conditions, rs, len(active), failure, now)
	return s, wait
}

// failureCondition keeps an existing ReplicaFailure as long as writes fail.
func failureCondition(conditions []appsv1.ReplicaSetCondition, rs *appsv1.ReplicaSet, active int, failure error,
	now time.Time,
) []appsv1.ReplicaSetCondition {
	isFailure := func(c appsv1.ReplicaSetCondition) bool { return c.Type == appsv1.ReplicaSetReplicaFailure }
	there := slices.ContainsFunc(conditions, isFailure)
	switch {
	case failure == nil && there:
		return slices.DeleteFunc(conditions, isFailure)
	case failure == nil || there:
		return conditions
	}
	reason := "FailedCreate"
	if active > int(*rs.Spec.Replicas) {
		reason = "FailedDelete"
	}
	return append(conditions, appsv1.ReplicaSetCondition{
		Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(now), Reason: reason, Message: failure.Error(),
	})
}
