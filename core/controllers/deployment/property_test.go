// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// world is a server with a Deployment, its sets and their pods; a ReplicaSet
// controller; and a Deployment controller whose cache shows each object as it was
// some time ago, and which may die between any two writes, or hear nothing of one.
type world struct {
	version int
	d       *appsv1.Deployment
	sets    map[string]*appsv1.ReplicaSet
	pods    map[string][]bool // by set: available or not

	cachedD *appsv1.Deployment
	cached  map[string]*appsv1.ReplicaSet
	written *controllers.Written
}

func (w *world) stamp(m metav1.Object) {
	w.version++
	m.SetResourceVersion(strconv.Itoa(w.version))
}

func (w *world) restart() {
	w.cachedD, w.cached, w.written = w.d.DeepCopy(), map[string]*appsv1.ReplicaSet{}, controllers.NewWritten()
	for name, rs := range w.sets {
		w.cached[name] = rs.DeepCopy()
	}
}

var errLost = errors.New("connection reset by peer")

// sure is what Written.Sure says of a cached object that is live on the server.
func (w *world) sure(cached, live metav1.Object) bool {
	return w.written.Sure(context.Background(), cached, func(context.Context) (metav1.Object, error) { return live, nil }) == nil
}

// reconcile does what the controller does until so many writes were answered. Then it dies
// before the next write, or (lost) does not hear of it although it is made. What is left of
// the writes is below zero then.
func (w *world) reconcile(writes int, lost bool, now time.Time) int {
	var owned []*appsv1.ReplicaSet
	for _, rs := range w.cached {
		owned = append(owned, rs)
	}
	slices.SortFunc(owned, func(a, b *appsv1.ReplicaSet) int { return cmp.Compare(a.Name, b.Name) })
	if !w.sure(w.cachedD, w.d) || slices.ContainsFunc(owned, func(rs *appsv1.ReplicaSet) bool { return !w.sure(rs, w.sets[rs.Name]) }) {
		return writes
	}
	for _, rs := range owned {
		w.written.Appeared(w.d.UID, rs.UID)
	}
	if unseen := w.written.Unseen(w.d.UID); len(unseen) > 0 {
		if made := unseen[0]; made.UID == "" {
			w.written.Appeared(w.d.UID, "")
			w.written.RecordCreated(w.d.UID, w.sets[made.Name])
		}
		return writes
	}
	p := decide(situation{deployment: w.cachedD, owned: owned, now: now, oldPods: func(current *appsv1.ReplicaSet) bool {
		for name, pods := range w.pods {
			if (current == nil || name != current.Name) && len(pods) > 0 {
				return true
			}
		}
		return false
	}})
	dies := func() bool {
		if writes--; writes < 0 && !lost {
			w.restart()
			return true
		}
		return false
	}
	unanswered := func() bool { return writes < 0 }
	if p.create != nil {
		if dies() || w.sets[p.create.Name] != nil {
			return writes
		}
		rs := p.create.DeepCopy()
		rs.UID, rs.CreationTimestamp, rs.Generation = types.UID(rs.Name), metav1.NewTime(now), 1
		w.stamp(rs)
		w.sets[rs.Name] = rs
		if unanswered() {
			w.written.FailedCreate(w.d.UID, rs, errLost)
			return writes
		}
		w.written.RecordCreated(w.d.UID, rs)
	}
	for _, rs := range p.update {
		if dies() || w.sets[rs.Name].ResourceVersion != rs.ResourceVersion {
			return writes // a conflict
		}
		next := rs.DeepCopy()
		next.Generation++
		w.stamp(next)
		w.sets[rs.Name] = next
		if unanswered() {
			w.written.Failed(rs, errLost)
			return writes
		}
		w.written.Record(next)
	}
	for _, rs := range p.remove {
		if dies() {
			return writes
		}
		if len(w.pods[rs.Name]) > 0 {
			panic("a set with pods is cleaned up")
		}
		delete(w.sets, rs.Name)
		delete(w.cached, rs.Name)
		if unanswered() {
			return writes
		}
	}
	if p.status == nil || dies() || w.d.ResourceVersion != p.status.ResourceVersion {
		return writes
	}
	w.d.Status, w.d.Annotations = p.status.Status, p.status.Annotations
	w.stamp(w.d)
	if unanswered() {
		w.written.Failed(w.d, errLost)
		return writes
	}
	w.written.Record(w.d)
	return writes
}

// replicaSets lets the other controller act on one set.
func (w *world) replicaSets(name string) {
	rs, pods := w.sets[name], w.pods[name]
	slices.SortFunc(pods, func(a, b bool) int { // those that aren't available go first
		switch {
		case a == b:
			return 0
		case a:
			return -1
		}
		return 1
	})
	want := int(*rs.Spec.Replicas)
	for len(pods) < want {
		pods = append(pods, false)
	}
	w.pods[name] = pods[:want]
	available := int32(0)
	for _, a := range w.pods[name] {
		if a {
			available++
		}
	}
	next := rs.DeepCopy()
	next.Status = appsv1.ReplicaSetStatus{
		Replicas: int32(want), ReadyReplicas: available, AvailableReplicas: available,
		ObservedGeneration: rs.Generation, TerminatingReplicas: ptr.To[int32](0),
	}
	w.stamp(next)
	w.sets[name] = next
}

func (w *world) available() (n int32) {
	for _, pods := range w.pods {
		for _, a := range pods {
			if a {
				n++
			}
		}
	}
	return n
}

func (w *world) wanted() (n int32) {
	for _, rs := range w.sets {
		n += *rs.Spec.Replicas
	}
	return n
}

func (w *world) names() []string {
	var names []string
	for name := range w.sets {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Templates change at any time, caches are stale, the controller dies, answers are lost: at no
// moment are there more pods than replicas + maxSurge, nor fewer available than
// replicas - maxUnavailable. In the end all pods are new.
func TestLimitsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		replicas := rapid.Int32Range(1, 10).Draw(t, "replicas")
		surge := rapid.IntRange(0, 4).Draw(t, "maxSurge")
		unavailable := rapid.IntRange(0, 4).Draw(t, "maxUnavailable")
		d := nginx(replicas)
		d.UID, d.Generation = "d", 1
		d.Spec.Strategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt(surge))
		d.Spec.Strategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromInt(unavailable))
		d.Spec.RevisionHistoryLimit = ptr.To(rapid.Int32Range(0, 2).Draw(t, "history"))
		w := &world{d: d, sets: map[string]*appsv1.ReplicaSet{}, pods: map[string][]bool{}}
		w.stamp(d)
		w.restart()
		now := time.Unix(1_800_000_000, 0)
		settle := func() {
			for range 60 {
				now = now.Add(time.Second)
				w.restart()
				w.reconcile(1000, false, now)
				for _, name := range w.names() {
					w.replicaSets(name)
					for i := range w.pods[name] {
						w.pods[name][i] = true
					}
				}
			}
		}
		settle()
		if w.available() != replicas {
			t.Fatalf("%d of %d at first", w.available(), replicas)
		}
		maxPods, minAvailable := replicas+maxSurge(d), replicas-maxUnavailable(d)
		for range rapid.IntRange(0, 120).Draw(t, "steps") {
			now = now.Add(time.Second)
			names := w.names()
			pick := func() string { return rapid.SampledFrom(names).Draw(t, "set") }
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				w.d = w.d.DeepCopy()
				w.d.Spec.Template.Spec.Containers[0].Image = fmt.Sprintf("nginx:%d", rapid.IntRange(1, 4).Draw(t, "image"))
				w.d.Generation++
				w.stamp(w.d)
			case 1, 2:
				w.replicaSets(pick())
			case 3: // pods become available
				pods := w.pods[pick()]
				for i := range pods {
					pods[i] = pods[i] || rapid.Bool().Draw(t, "available")
				}
			case 4, 5, 6: // the cache learns of one object
				if rapid.Bool().Draw(t, "of the Deployment") {
					w.cachedD = w.d.DeepCopy()
				} else {
					name := pick()
					w.cached[name] = w.sets[name]
				}
			default:
				w.reconcile(rapid.IntRange(0, 5).Draw(t, "answered writes"), rapid.Bool().Draw(t, "lost"), now)
			}
			if n := w.wanted(); n > maxPods {
				t.Fatalf("%d pods asked for, at most %d may be", n, maxPods)
			}
			if n := w.available(); n < minAvailable {
				t.Fatalf("%d available, at least %d must be", n, minAvailable)
			}
		}
		settle()
		current := newSet(w.d)
		for name, pods := range w.pods {
			if rs := w.sets[name]; rs == nil || len(pods) == 0 {
				continue
			} else if !sameTemplate(&rs.Spec.Template, &w.d.Spec.Template) {
				t.Fatalf("old pods are left: %s has %d, current is %s", name, len(pods), current.Name)
			}
		}
		if w.available() != replicas {
			t.Fatalf("%d of %d in the end", w.available(), replicas)
		}
		if !complete(w.d, &w.d.Status) {
			t.Fatalf("not complete: %+v", w.d.Status)
		}
	})
}

// The answer to each write of a rollout is lost once, and the template changes before the
// cache shows what became of it: there are not more pods than replicas + maxSurge then, and in
// the end all are new.
func TestLostAnswers(t *testing.T) {
	for answered := range 100 {
		d := nginx(2)
		d.UID, d.Generation = "d", 1
		w := &world{d: d, sets: map[string]*appsv1.ReplicaSet{}, pods: map[string][]bool{}}
		w.stamp(d)
		w.restart()
		now := time.Unix(1_800_000_000, 0)
		change := func(image string) {
			w.d = w.d.DeepCopy()
			w.d.Spec.Template.Spec.Containers[0].Image = image
			w.d.Generation++
			w.stamp(w.d)
			w.cachedD = w.d.DeepCopy()
		}
		rollOut := func(writes int) int {
			for range 60 {
				now = now.Add(time.Second)
				w.cachedD, w.cached = w.d.DeepCopy(), maps.Clone(w.sets)
				if writes = w.reconcile(writes, true, now); writes < 0 {
					break
				}
				for _, name := range w.names() {
					w.replicaSets(name)
					for i := range w.pods[name] {
						w.pods[name][i] = true
					}
				}
			}
			return writes
		}
		rollOut(1000)
		change("nginx:2")
		left := rollOut(answered)
		change("nginx:3")
		w.reconcile(1000, false, now)
		if n, most := w.wanted(), 2+maxSurge(d); n > most {
			t.Errorf("the answer to write %d was lost: %d pods asked for, at most %d may be", answered+1, n, most)
		}
		rollOut(1000)
		if current := newSet(w.d); len(w.pods[current.Name]) != 2 || w.wanted() != 2 {
			t.Errorf("the answer to write %d was lost: in the end %v", answered+1, w.pods)
		}
		if left >= 0 {
			return
		}
	}
	t.Error("a rollout of two pods has more than 100 writes")
}
