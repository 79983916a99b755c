// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// situation is everything that a plan is made from.
type situation struct {
	deployment *appsv1.Deployment
	owned      []*appsv1.ReplicaSet
	// oldPods reports whether a pod of another set than the current one may still
	// run; asked only by Recreate.
	oldPods func(current *appsv1.ReplicaSet) bool
	now     time.Time
}

// plan is what to do, in this order. Each write is guarded by the resource version
// that the plan was made from, so a crash or a conflict between any two of them
// only means that the next plan continues from there.
type plan struct {
	create  *appsv1.ReplicaSet
	update  []*appsv1.ReplicaSet
	remove  []*appsv1.ReplicaSet
	rewrite *appsv1.Deployment // spec changed by a rollback
	status  *appsv1.Deployment // status or revision annotation changed
	events  []event            // after the writes
	checkIn time.Duration
}

// event is recorded on the Deployment; where it tells of a set, only once that
// set was written.
type event struct{ set, kind, reason, message string }

// planner carries a plan that is being made. d and sets are copies.
type planner struct {
	situation
	d    *appsv1.Deployment
	sets sets
	plan plan
}

// decide makes the plan.
func decide(in situation) plan {
	p := &planner{situation: in, d: in.deployment.DeepCopy(), sets: sortSets(in.deployment, in.owned)}
	switch selector := p.d.Spec.Selector; {
	case selector == nil || len(selector.MatchLabels)+len(selector.MatchExpressions) == 0:
		p.event(corev1.EventTypeWarning, "SelectingAll", "This deployment is selecting all pods. A non-empty selector is required.")
		p.d.Status.ObservedGeneration = max(p.d.Status.ObservedGeneration, p.d.Generation)
		p.finish(p.d.Status)
	case p.d.DeletionTimestamp != nil:
		p.adoptRevision()
		p.finish(countStatus(p.d, p.sets, p.now))
	default:
		p.decideLiving()
	}
	return p.plan
}

func (p *planner) decideLiving() {
	p.recordPause()
	target, rollback := rollbackTarget(p.d)
	p.adoptRevision()
	switch {
	case p.d.Spec.Paused:
		p.scaleAll()
		if !rollback {
			p.cleanUp()
		}
		p.finish(countStatus(p.d, p.sets, p.now))
	case rollback:
		p.rollBack(target)
	case p.scaled() && (rolling(p.d) || p.onlyActive() != nil):
		p.scaleAll()
		p.finish(countStatus(p.d, p.sets, p.now))
	case p.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		p.recreate()
	default:
		p.roll()
	}
}

func (p *planner) event(kind, reason, format string, args ...any) {
	p.plan.events = append(p.plan.events, event{kind: kind, reason: reason, message: fmt.Sprintf(format, args...)})
}

// recordPause keeps the deadline from running out on a Deployment that stood still
// because somebody paused it.
func (p *planner) recordPause() {
	if !hasDeadline(p.d) {
		return
	}
	c := condition(&p.d.Status, appsv1.DeploymentProgressing)
	if c != nil && c.Reason == reasonTimedOut {
		return // the lack of progress is the better news to keep
	}
	wasPaused := c != nil && c.Reason == reasonPaused
	switch {
	case p.d.Spec.Paused && !wasPaused:
		setCondition(&p.d.Status, appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonPaused, "Deployment is paused", p.now)
	case !p.d.Spec.Paused && wasPaused:
		setCondition(&p.d.Status, appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonResumed, "Deployment is resumed", p.now)
	}
}

// adoptRevision brings an existing current set's annotations and minReadySeconds up
// to date and the Deployment's revision with it.
func (p *planner) adoptRevision() {
	rs := p.sets.current
	if rs == nil {
		return
	}
	annotate(p.d, rs, maxRevision(p.sets.old)+1)
	rs.Spec.MinReadySeconds = p.d.Spec.MinReadySeconds
	p.setRevision(rs.Annotations[revisionKey])
	if hasDeadline(p.d) && condition(&p.d.Status, appsv1.DeploymentProgressing) == nil {
		setCondition(&p.d.Status, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonFound,
			fmt.Sprintf("Found new replica set %q", rs.Name), p.now)
	}
}

func (p *planner) setRevision(revision string) {
	if p.d.Annotations == nil {
		p.d.Annotations = map[string]string{}
	}
	p.d.Annotations[revisionKey] = revision
}

// start creates the current set, at once as big as the surge allows.
func (p *planner) start() {
	rs := newSet(p.d)
	n := strconv.FormatInt(maxRevision(p.sets.old)+1, 10)
	annotate(p.d, rs, maxRevision(p.sets.old)+1)
	setScaleAnnotations(p.d, rs)
	*rs.Spec.Replicas = p.room(rs)
	p.plan.create = rs
	p.sets.current = rs
	p.setRevision(n)
	if hasDeadline(p.d) {
		setCondition(&p.d.Status, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonCreated,
			fmt.Sprintf("Created new replica set %q", rs.Name), p.now)
	}
	if *rs.Spec.Replicas > 0 {
		p.scaleEvent(rs, "up", 0)
	}
}

// room is the size to which the current set may grow now.
func (p *planner) room(rs *appsv1.ReplicaSet) int32 {
	if !rolling(p.d) {
		return *p.d.Spec.Replicas
	}
	most := *p.d.Spec.Replicas + maxSurge(p.d)
	now := sum(p.sets.all(), wanted)
	if now >= most {
		return *rs.Spec.Replicas
	}
	return *rs.Spec.Replicas + min(most-now, *p.d.Spec.Replicas-*rs.Spec.Replicas)
}

// scale changes a set's size, and says so. Its annotations are renewed with it.
func (p *planner) scale(rs *appsv1.ReplicaSet, size int32) bool {
	former := *rs.Spec.Replicas
	if former == size {
		return false
	}
	direction := "down"
	if former < size {
		direction = "up"
	}
	*rs.Spec.Replicas = size
	setScaleAnnotations(p.d, rs)
	p.scaleEvent(rs, direction, former)
	return true
}

// scaleEvent tells of a set's change of size, the latest one if a plan makes several.
func (p *planner) scaleEvent(rs *appsv1.ReplicaSet, direction string, former int32) {
	e := event{set: rs.Name, kind: corev1.EventTypeNormal, reason: "ScalingReplicaSet"}
	e.message = fmt.Sprintf("Scaled %s replica set %s from %d to %d", direction, rs.Name, former, *rs.Spec.Replicas)
	p.plan.events = append(p.plan.events, e)
}

// roll is one step of a rolling update: new pods as far as the surge allows, else
// fewer old ones as far as enough pods are available.
func (p *planner) roll() {
	if p.sets.current == nil {
		p.start()
		p.finish(rolloutStatus(p.d, p.sets, p.now))
		return
	}
	if !p.growCurrent() && !p.shrinkOld() && complete(p.d, &p.d.Status) {
		p.cleanUp()
	}
	p.finish(rolloutStatus(p.d, p.sets, p.now))
}

func (p *planner) growCurrent() bool {
	rs, want := p.sets.current, *p.d.Spec.Replicas
	if *rs.Spec.Replicas > want {
		return p.scale(rs, want)
	}
	return p.scale(rs, p.room(rs))
}

// shrinkOld takes old pods away: unhealthy ones first, whose loss makes nothing
// less available, then healthy ones as far as enough others are.
func (p *planner) shrinkOld() bool {
	old := controllers.Filter(p.sets.old, isActive)
	if len(old) == 0 {
		return false
	}
	minAvailable := *p.d.Spec.Replicas - maxUnavailable(p.d)
	// Pods of the new set that aren't available yet must not be counted as a
	// reason to take more old ones away.
	notYet := max(wanted(p.sets.current)-available(p.sets.current), 0)
	budget := sum(p.sets.all(), wanted) - minAvailable - notYet
	if budget <= 0 {
		return false
	}
	unhealthy := p.dropUnhealthy(old, budget)
	healthy := p.dropHealthy(old, minAvailable)
	return unhealthy || healthy
}

func (p *planner) dropUnhealthy(old []*appsv1.ReplicaSet, budget int32) (dropped bool) {
	for _, rs := range old {
		n := min(budget, wanted(rs)-available(rs))
		if n <= 0 {
			continue
		}
		budget -= n
		p.scale(rs, wanted(rs)-n)
		dropped = true
	}
	return dropped
}

func (p *planner) dropHealthy(old []*appsv1.ReplicaSet, minAvailable int32) (dropped bool) {
	// What a set was scaled below its available pods, in this plan or before, is
	// gone already in all but name.
	sure := sum(p.sets.all(), func(rs *appsv1.ReplicaSet) int32 { return min(available(rs), wanted(rs)) })
	spare := sure - minAvailable
	for _, rs := range old {
		n := min(spare, wanted(rs))
		if n <= 0 {
			continue
		}
		spare -= n
		p.scale(rs, wanted(rs)-n)
		dropped = true
	}
	return dropped
}

// recreate takes all old pods away before the first new one is made.
func (p *planner) recreate() {
	shrunk := false
	for _, rs := range p.sets.old {
		shrunk = p.scale(rs, 0) || shrunk
	}
	if !shrunk && sum(p.sets.old, actual) == 0 && !p.oldPods(p.sets.current) {
		if p.sets.current == nil {
			p.start()
		} else if !p.scale(p.sets.current, *p.d.Spec.Replicas) && complete(p.d, &p.d.Status) {
			p.cleanUp()
		}
	}
	p.finish(rolloutStatus(p.d, p.sets, p.now))
}

// scaled reports whether spec.replicas was changed since the sets were last sized.
func (p *planner) scaled() bool {
	return slices.ContainsFunc(p.sets.active(), func(rs *appsv1.ReplicaSet) bool {
		n, ok := count(rs, desiredKey)
		return ok && n != *p.d.Spec.Replicas
	})
}

// scaleAll sizes the sets after spec.replicas changed. With several of them, in the
// middle of a rollout, each keeps its share: giving all to one would speed the
// rollout up or turn it back.
func (p *planner) scaleAll() {
	switch only := p.onlyActive(); {
	case only != nil:
		if !p.scale(only, *p.d.Spec.Replicas) && isActive(only) {
			setScaleAnnotations(p.d, only) // somebody sized it by hand: the scaling is dealt with
		}
	case p.saturated():
		for _, rs := range p.sets.old {
			p.scale(rs, 0)
		}
	case rolling(p.d):
		p.scaleProportionally()
	}
}

// onlyActive is the one set that has pods, or the newest if none has; nil if
// several have.
func (p *planner) onlyActive() *appsv1.ReplicaSet {
	active := p.sets.active()
	switch {
	case len(active) == 1:
		return active[0]
	case len(active) > 1:
		return nil
	case p.sets.current != nil:
		return p.sets.current
	case len(p.sets.old) > 0:
		return p.sets.old[len(p.sets.old)-1]
	}
	return nil
}

func (p *planner) saturated() bool {
	rs, want := p.sets.current, *p.d.Spec.Replicas
	if rs == nil {
		return false
	}
	desired, ok := count(rs, desiredKey)
	return ok && desired == want && wanted(rs) == want && available(rs) == want
}

func (p *planner) scaleProportionally() {
	active := p.sets.active()
	if len(active) == 0 {
		return
	}
	most := int32(0)
	if *p.d.Spec.Replicas > 0 {
		most = *p.d.Spec.Replicas + maxSurge(p.d)
	}
	add := most - sum(active, wanted)
	if add != 0 {
		slices.SortFunc(active, bySize(add > 0))
	}
	sizes := make([]int32, len(active))
	left := add
	for i, rs := range active {
		share := int32(0)
		switch fraction := p.fraction(rs); {
		case add > 0:
			share = min(fraction, left)
		case add < 0:
			share = max(fraction, left)
		}
		sizes[i] = wanted(rs) + share
		left -= share
	}
	// What rounding left over goes to the biggest.
	sizes[0] = max(sizes[0]+left, 0)
	for i, rs := range active {
		if !p.scale(rs, max(sizes[i], 0)) {
			setScaleAnnotations(p.d, rs) // its share is unchanged, the scale event is dealt with
		}
	}
}

// fraction is by how much a set grows or shrinks if it keeps its share.
func (p *planner) fraction(rs *appsv1.ReplicaSet) int32 {
	if *p.d.Spec.Replicas == 0 {
		return -wanted(rs)
	}
	before, ok := count(rs, maxKey)
	if !ok || before == 0 {
		// Somebody took the annotation away; the present size is a fair guess.
		if before = p.d.Status.Replicas; before == 0 {
			return 0
		}
	}
	size := float64(wanted(rs)) * float64(*p.d.Spec.Replicas+maxSurge(p.d)) / float64(before)
	return int32(math.Round(size)) - wanted(rs)
}

// cleanUp deletes the oldest sets beyond the history limit, once they are empty.
func (p *planner) cleanUp() {
	if keepsAllHistory(p.d) {
		return
	}
	old := controllers.Filter(p.sets.old, func(rs *appsv1.ReplicaSet) bool { return rs.DeletionTimestamp == nil })
	slices.SortFunc(old, byRevision)
	for _, rs := range old[:max(len(old)-int(*p.d.Spec.RevisionHistoryLimit), 0)] {
		if rs.Status.Replicas == 0 && wanted(rs) == 0 && rs.Generation <= rs.Status.ObservedGeneration {
			p.plan.remove = append(p.plan.remove, rs)
		}
	}
}

func rollbackTarget(d *appsv1.Deployment) (revision int64, ok bool) {
	revision, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedRollbackTo], 10, 64)
	return revision, err == nil
}

// rollBack serves the old rollbackTo field, kept by an annotation. (kubectl undo
// changes the template itself.)
func (p *planner) rollBack(target int64) {
	if target == 0 {
		target = lastRevision(p.sets.all())
		if target == 0 {
			p.event(corev1.EventTypeWarning, "DeploymentRollbackRevisionNotFound", "Unable to find last revision.")
		}
	}
	rewritten := p.deployment.DeepCopy()
	delete(rewritten.Annotations, appsv1.DeprecatedRollbackTo)
	p.plan.rewrite = rewritten
	if target == 0 {
		return
	}
	for _, rs := range p.sets.all() {
		if n, ok := revision(rs); ok && n == target {
			p.rollBackTo(rewritten, rs, target)
			return
		}
	}
	p.event(corev1.EventTypeWarning, "DeploymentRollbackRevisionNotFound", "Unable to find the revision to rollback to.")
}

func (p *planner) rollBackTo(d *appsv1.Deployment, rs *appsv1.ReplicaSet, target int64) {
	if sameTemplate(&d.Spec.Template, &rs.Spec.Template) {
		p.event(corev1.EventTypeWarning, "DeploymentRollbackTemplateUnchanged",
			"The rollback revision contains the same template as current deployment %q", d.Name)
		return
	}
	d.Spec.Template = *withoutHash(&rs.Spec.Template).DeepCopy()
	// The annotations (change-cause) go back with the template, or they would be
	// copied onto the set that is rolled back to.
	kept := map[string]string{}
	for k, v := range d.Annotations {
		if ownAnnotation(k) {
			kept[k] = v
		}
	}
	for k, v := range rs.Annotations {
		if !ownAnnotation(k) {
			kept[k] = v
		}
	}
	d.Annotations = kept
	p.event(corev1.EventTypeNormal, "DeploymentRollback", "Rolled back deployment %q to revision %d", d.Name, target)
}

// finish compares with what there was and puts the differences into the plan.
func (p *planner) finish(next appsv1.DeploymentStatus) {
	before := make(map[string]*appsv1.ReplicaSet, len(p.owned))
	for _, rs := range p.owned {
		before[rs.Name] = rs
	}
	for _, rs := range p.sets.all() {
		if was := before[rs.Name]; was != nil && !equality.Semantic.DeepEqual(was, rs) {
			p.plan.update = append(p.plan.update, rs)
		}
	}
	p.d.Status = next
	if !equality.Semantic.DeepEqual(p.deployment.Status, next) || p.deployment.Annotations[revisionKey] != p.d.Annotations[revisionKey] {
		p.plan.status = p.d
	}
	p.plan.checkIn = nextCheck(p.d, &next, p.now)
}
