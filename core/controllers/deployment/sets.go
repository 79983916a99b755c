// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// Annotations by which a Deployment and its ReplicaSets remember the rollout;
// kubectl rollout reads them.
const (
	revisionKey        = "deployment.kubernetes.io/revision"
	revisionHistoryKey = "deployment.kubernetes.io/revision-history"
	// desiredKey tells a change of spec.replicas from a rollout step.
	desiredKey = "deployment.kubernetes.io/desired-replicas"
	// maxKey is replicas + maxSurge when the set was last scaled: the base of proportions.
	maxKey = "deployment.kubernetes.io/max-replicas"
)

// maxRevisionHistory bounds the length of the revision-history annotation.
const maxRevisionHistory = 2000

// sets are a Deployment's ReplicaSets: copies that a plan may change.
type sets struct {
	// current has the Deployment's template; nil before the first rollout.
	current *appsv1.ReplicaSet
	old     []*appsv1.ReplicaSet // oldest first
}

func sortSets(d *appsv1.Deployment, owned []*appsv1.ReplicaSet) sets {
	var s sets
	for _, rs := range owned {
		s.old = append(s.old, rs.DeepCopy())
	}
	slices.SortFunc(s.old, byAge)
	for i, rs := range s.old {
		// Several can match after an upgrade added a field to the template; the
		// oldest is taken, always the same one.
		if sameTemplate(&rs.Spec.Template, &d.Spec.Template) {
			s.current = rs
			s.old = slices.Delete(s.old, i, i+1)
			break
		}
	}
	return s
}

// sameTemplate compares all but the hash label: the hash itself changes when the
// API gains a field, and a Deployment's template has none.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	return equality.Semantic.DeepEqual(withoutHash(a), withoutHash(b))
}

func withoutHash(t *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	if _, ok := t.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; !ok {
		return t
	}
	c := *t
	c.Labels = make(map[string]string, len(t.Labels))
	for k, v := range t.Labels {
		if k != appsv1.DefaultDeploymentUniqueLabelKey {
			c.Labels[k] = v
		}
	}
	return &c
}

func (s sets) all() []*appsv1.ReplicaSet {
	if s.current == nil {
		return s.old
	}
	return append(slices.Clone(s.old), s.current)
}

func (s sets) active() []*appsv1.ReplicaSet { return controllers.Filter(s.all(), isActive) }

func isActive(rs *appsv1.ReplicaSet) bool { return *rs.Spec.Replicas > 0 }

func sum(all []*appsv1.ReplicaSet, f func(*appsv1.ReplicaSet) int32) int32 {
	n := 0
	for _, rs := range all {
		n += int(f(rs))
	}
	return int32(min(n, math.MaxInt32))
}

func wanted(rs *appsv1.ReplicaSet) int32    { return *rs.Spec.Replicas }
func actual(rs *appsv1.ReplicaSet) int32    { return rs.Status.Replicas }
func ready(rs *appsv1.ReplicaSet) int32     { return rs.Status.ReadyReplicas }
func available(rs *appsv1.ReplicaSet) int32 { return rs.Status.AvailableReplicas }

func byAge(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// bySize is the biggest first; among equals the newer or the older.
func bySize(newer bool) func(a, b *appsv1.ReplicaSet) int {
	return func(a, b *appsv1.ReplicaSet) int {
		age := byAge(a, b)
		if newer {
			age = -age
		}
		return cmp.Or(cmp.Compare(wanted(b), wanted(a)), age)
	}
}

func byRevision(a, b *appsv1.ReplicaSet) int {
	ra, okA := revision(a)
	rb, okB := revision(b)
	if !okA || !okB {
		return byAge(a, b)
	}
	return cmp.Or(cmp.Compare(ra, rb), byAge(a, b))
}

// revision of a set; ok is false if the annotation is not a number.
func revision(rs *appsv1.ReplicaSet) (n int64, ok bool) {
	text, there := rs.Annotations[revisionKey]
	if !there {
		return 0, true
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

func maxRevision(all []*appsv1.ReplicaSet) int64 {
	var highest int64
	for _, rs := range all {
		if n, ok := revision(rs); ok {
			highest = max(highest, n)
		}
	}
	return highest
}

// lastRevision is the second highest: what an undo without a number goes to.
func lastRevision(all []*appsv1.ReplicaSet) int64 {
	var highest, second int64
	for _, rs := range all {
		switch n, ok := revision(rs); {
		case !ok:
		case n >= highest:
			highest, second = n, highest
		case n > second:
			second = n
		}
	}
	return second
}

// ownAnnotations are not copied between a Deployment and its sets.
func ownAnnotation(key string) bool {
	switch key {
	case corev1.LastAppliedConfigAnnotation, revisionKey, revisionHistoryKey, desiredKey, maxKey, appsv1.DeprecatedRollbackTo:
		return true
	}
	return false
}

// annotate brings the current set's annotations up to date: the Deployment's own
// (change-cause among them), and a revision above all old ones. A set that had a
// revision before is being rolled back to; its former numbers are kept as history.
func annotate(d *appsv1.Deployment, rs *appsv1.ReplicaSet, newRevision int64) {
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	for k, v := range d.Annotations {
		if !ownAnnotation(k) {
			rs.Annotations[k] = v
		}
	}
	former, had := rs.Annotations[revisionKey]
	n, ok := revision(rs)
	// A higher number than newRevision stays: old sets may have been cleaned up since.
	if !ok || n >= newRevision {
		return
	}
	rs.Annotations[revisionKey] = strconv.FormatInt(newRevision, 10)
	if had && former != "" {
		rs.Annotations[revisionHistoryKey] = appendHistory(rs.Annotations[revisionHistoryKey], former)
	}
}

func appendHistory(history, former string) string {
	if history == "" {
		return former
	}
	numbers := append(strings.Split(history, ","), former)
	joined := strings.Join(numbers, ",")
	for len(joined) > maxRevisionHistory && len(numbers) > 1 {
		numbers = numbers[1:]
		joined = strings.Join(numbers, ",")
	}
	return joined
}

func setScaleAnnotations(d *appsv1.Deployment, rs *appsv1.ReplicaSet) {
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	rs.Annotations[desiredKey] = strconv.Itoa(int(*d.Spec.Replicas))
	rs.Annotations[maxKey] = strconv.Itoa(int(*d.Spec.Replicas + maxSurge(d)))
}

// count reads a replica count from an annotation.
func count(rs *appsv1.ReplicaSet, key string) (int32, bool) {
	n, err := strconv.ParseUint(rs.Annotations[key], 10, 31)
	return int32(n), err == nil
}

func rolling(d *appsv1.Deployment) bool {
	return d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType
}

// limits resolves maxSurge (rounded up) and maxUnavailable (rounded down). Both can
// come out as zero by rounding, which would be a rollout that never moves: then one
// may be unavailable, because a surge might not fit the quota.
func limits(d *appsv1.Deployment) (surge, unavailable int32) {
	if !rolling(d) || d.Spec.Strategy.RollingUpdate == nil {
		return 0, 0
	}
	zero := intstr.FromInt32(0)
	u := d.Spec.Strategy.RollingUpdate
	// Validation let only well-formed values through.
	s, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(u.MaxSurge, zero), int(*d.Spec.Replicas), true)
	n, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(u.MaxUnavailable, zero), int(*d.Spec.Replicas), false)
	if s == 0 && n == 0 {
		n = 1
	}
	// What the two allow together is a count of pods too, for a Deployment of two billion as well.
	return int32(min(s, math.MaxInt32-int(*d.Spec.Replicas))), int32(min(n, math.MaxInt32))
}

func maxSurge(d *appsv1.Deployment) int32 {
	surge, _ := limits(d)
	return surge
}

func maxUnavailable(d *appsv1.Deployment) int32 {
	_, unavailable := limits(d)
	return min(unavailable, *d.Spec.Replicas)
}

// newSet is the ReplicaSet for the Deployment's template. Its name follows from the
// template, so that creating it twice is noticed.
func newSet(d *appsv1.Deployment) *appsv1.ReplicaSet {
	template := d.Spec.Template.DeepCopy()
	hash := controllers.TemplateHash(template, d.Status.CollisionCount)
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	selector := d.Spec.Selector.DeepCopy()
	if selector.MatchLabels == nil {
		selector.MatchLabels = map[string]string{}
	}
	selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	labels := make(map[string]string, len(template.Labels))
	for k, v := range template.Labels {
		labels[k] = v
	}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name:            setName(d.Name, hash),
			Namespace:       d.Namespace,
			Labels:          labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, deploymentKind)},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas:        new(int32),
			MinReadySeconds: d.Spec.MinReadySeconds,
			Selector:        selector,
			Template:        *template,
		},
	}
}

func setName(deployment, hash string) string {
	if room := validation.DNS1123SubdomainMaxLength - len(hash) - 1; len(deployment) > room {
		deployment = deployment[:room]
	}
	return deployment + "-" + hash
}

func hasDeadline(d *appsv1.Deployment) bool {
	return d.Spec.ProgressDeadlineSeconds != nil && *d.Spec.ProgressDeadlineSeconds != math.MaxInt32
}

func keepsAllHistory(d *appsv1.Deployment) bool {
	return d.Spec.RevisionHistoryLimit == nil || *d.Spec.RevisionHistoryLimit == math.MaxInt32
}
