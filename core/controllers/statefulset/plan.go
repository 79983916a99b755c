// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// situation is everything that a plan is made from.
type situation struct {
	set  *appsv1.StatefulSet
	pods []*corev1.Pod
	// current and update are the names of the revisions: the one that pods had
	// before, and the one that they are to have. Outside an update they are the same.
	current, update string
	now             time.Time
}

// plan is what to do with pods. Each has a name that follows from its ordinal, so
// that none is ever there twice, and each deletion names a UID: a plan from a stale
// cache can only do again what was done.
type plan struct {
	create []creation
	remove []*corev1.Pod
	// repair are pods whose identity somebody changed.
	repair []*corev1.Pod
	status appsv1.StatefulSetStatus
	wait   time.Duration // look again after this long; 0 = only on changes
}

type creation struct {
	ordinal  int
	revision string
}

// burst is how many pods one plan creates, and deletes, at most: whoever writes the set chooses the number, up to 2^31-1.
const burst = 500

type planner struct {
	situation
	// replicas are the pods that are wanted and there, lowest ordinal first: what a plan costs follows from
	// them, not from the wanted number. condemned are beyond that number, highest ordinal first.
	replicas  []*corev1.Pod
	condemned []*corev1.Pod
	plan      plan
}

// ordinal of a pod, or -1 if its name isn't one of the set's.
func ordinal(set *appsv1.StatefulSet, pod *corev1.Pod) int {
	text, ok := strings.CutPrefix(pod.Name, set.Name+"-")
	n, err := strconv.Atoi(text)
	if !ok || err != nil || n < 0 || strconv.Itoa(n) != text {
		return -1
	}
	return n
}

func firstOrdinal(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

func podName(set *appsv1.StatefulSet, ordinal int) string {
	return set.Name + "-" + strconv.Itoa(ordinal)
}

func inRange(set *appsv1.StatefulSet, ordinal int) bool {
	first := firstOrdinal(set)
	return ordinal >= first && ordinal < first+int(*set.Spec.Replicas)
}

func revisionOf(pod *corev1.Pod) string { return pod.Labels[appsv1.StatefulSetRevisionLabel] }

func running(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && controllers.PodReady(pod)
}

func ordered(set *appsv1.StatefulSet) bool {
	return set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
}

// decide makes the plan: first every replica must exist and, in order, be
// available; then those that are too many go; then some are updated.
func decide(in situation) plan {
	p := &planner{situation: in}
	for _, pod := range in.pods {
		switch n := ordinal(in.set, pod); {
		case n < 0:
		case inRange(in.set, n):
			p.replicas = append(p.replicas, pod)
		default:
			p.condemned = append(p.condemned, pod)
		}
	}
	upwards := func(a, b *corev1.Pod) int { return cmp.Compare(ordinal(in.set, a), ordinal(in.set, b)) }
	slices.SortFunc(p.replicas, upwards)
	slices.SortFunc(p.condemned, upwards)
	slices.Reverse(p.condemned)
	if in.set.DeletionTimestamp == nil && p.establish() && p.shrink() {
		p.roll()
	}
	p.count()
	return p.plan
}

// available also notes when a pod that is ready becomes available.
func (p *planner) available(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	ok, wait := controllers.PodAvailable(pod, p.set.Spec.MinReadySeconds, p.now)
	if wait > 0 && (p.plan.wait == 0 || wait < p.plan.wait) {
		p.plan.wait = wait
	}
	return ok
}

// remove puts a pod on the list of those to delete. What is beyond a burst goes by a later plan: each deletion is followed by one.
func (p *planner) remove(pod *corev1.Pod) {
	if len(p.plan.remove) < burst {
		p.plan.remove = append(p.plan.remove, pod)
	}
}

// establish brings replicas into being. In order, it waits at the first that is
// not available yet; it reports whether nothing is to be waited for.
func (p *planner) establish() bool {
	next := firstOrdinal(p.set)
	for _, pod := range p.replicas {
		n := ordinal(p.set, pod)
		if !p.fill(next, n) || !p.keep(pod) && ordered(p.set) {
			return false
		}
		next = n + 1
	}
	return p.fill(next, firstOrdinal(p.set)+int(*p.set.Spec.Replicas))
}

// fill creates the replicas from one ordinal up to another, of which none is there. In order, it creates the first
// and reports that it is to be waited for.
func (p *planner) fill(from, to int) bool {
	for n := from; n < to && len(p.plan.create) < burst; n++ {
		p.plan.create = append(p.plan.create, creation{n, p.revisionFor(n)})
		if ordered(p.set) {
			return false
		}
	}
	return true
}

// keep looks after a replica that is there; it reports whether all is well with it.
func (p *planner) keep(pod *corev1.Pod) bool {
	switch {
	case controllers.PodFinished(pod):
		if pod.DeletionTimestamp == nil {
			p.remove(pod) // and made anew when it is gone
		}
		return false
	case pod.DeletionTimestamp != nil:
		return false
	}
	if !identified(p.set, pod) {
		p.plan.repair = append(p.plan.repair, pod)
	}
	return running(pod) && p.available(pod)
}

// identified: the labels by which Services reach one pod of the set.
func identified(set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	return pod.Labels[appsv1.StatefulSetPodNameLabel] == pod.Name && pod.Labels[appsv1.PodIndexLabel] == strconv.Itoa(ordinal(set, pod))
}

// revisionFor: below the partition, or below those that an update has reached, a
// pod that is lost comes back as it was.
func (p *planner) revisionFor(n int) string {
	if p.set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateStatefulSetStrategyType {
		return p.update
	}
	untouched := int(p.set.Status.CurrentReplicas)
	if r := p.set.Spec.UpdateStrategy.RollingUpdate; r != nil {
		untouched = int(ptr.Deref(r.Partition, 0))
	}
	if n < firstOrdinal(p.set)+untouched {
		return p.current
	}
	return p.update
}

// shrink takes pods away from the highest ordinal down; in order, one at a time
// and only while all others are well. The first that isn't may go itself.
func (p *planner) shrink() bool {
	var ill *corev1.Pod
	for _, pod := range slices.Concat(p.replicas, reversed(p.condemned)) {
		if !p.available(pod) {
			ill = pod
			break
		}
	}
	for _, pod := range p.condemned {
		if pod.DeletionTimestamp != nil {
			if ordered(p.set) {
				return false
			}
			continue
		}
		if ordered(p.set) && !(running(pod) && p.available(pod)) && pod != ill {
			return false
		}
		p.remove(pod)
		if ordered(p.set) {
			return false
		}
	}
	return true
}

func reversed(pods []*corev1.Pod) []*corev1.Pod {
	r := slices.Clone(pods)
	slices.Reverse(r)
	return r
}

// roll removes old pods, highest ordinal first, to be made anew from the update
// revision: as many as may be unavailable.
func (p *planner) roll() {
	if p.set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateStatefulSetStrategyType {
		return
	}
	least, most := 0, 1
	if r := p.set.Spec.UpdateStrategy.RollingUpdate; r != nil {
		least = int(ptr.Deref(r.Partition, 0))
		// Validation let only well-formed values through.
		n, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(r.MaxUnavailable, intstr.FromInt32(1)),
			int(*p.set.Spec.Replicas), false)
		most = max(n, 1)
	}
	budget := most - (int(*p.set.Spec.Replicas) - len(p.replicas))
	for _, pod := range p.replicas {
		if !p.available(pod) {
			budget--
		}
	}
	for _, pod := range slices.Backward(p.replicas) {
		if ordinal(p.set, pod)-firstOrdinal(p.set) < least {
			break
		}
		if pod.DeletionTimestamp != nil || revisionOf(pod) == p.update || controllers.PodFinished(pod) {
			continue
		}
		switch {
		case !p.available(pod) && !ordered(p.set):
			p.remove(pod) // nothing is lost by it
		case budget > 0:
			p.remove(pod)
			budget--
		}
	}
}

// count fills in the status, as it is once the plan is carried out.
func (p *planner) count() {
	s := *p.set.Status.DeepCopy()
	s.ObservedGeneration = p.set.Generation
	s.CurrentRevision, s.UpdateRevision = p.current, p.update
	s.CollisionCount = ptr.To(ptr.Deref(p.set.Status.CollisionCount, 0))
	s.Replicas, s.ReadyReplicas, s.AvailableReplicas, s.CurrentReplicas, s.UpdatedReplicas = 0, 0, 0, 0, 0
	tally := func(revision string) {
		s.Replicas++
		if revision == p.current {
			s.CurrentReplicas++
		}
		if revision == p.update {
			s.UpdatedReplicas++
		}
	}
	removed := map[*corev1.Pod]bool{}
	for _, pod := range p.plan.remove {
		removed[pod] = true
	}
	for _, pod := range p.pods {
		if ordinal(p.set, pod) < 0 {
			continue
		}
		leaving := pod.DeletionTimestamp != nil || removed[pod]
		if leaving {
			s.Replicas++
		} else {
			tally(revisionOf(pod))
		}
		if running(pod) {
			s.ReadyReplicas++
			if ok, _ := controllers.PodAvailable(pod, p.set.Spec.MinReadySeconds, p.now); ok {
				s.AvailableReplicas++
			}
		}
	}
	if want := *p.set.Spec.Replicas; s.UpdatedReplicas == want && s.ReadyReplicas == want && s.Replicas == want {
		s.CurrentReplicas, s.CurrentRevision = s.UpdatedReplicas, s.UpdateRevision // the update is complete
	}
	p.plan.status = s
}
