// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"cmp"
	"fmt"
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
// some time ago, and which may die between any two writes.
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

// reconcile does what the controller does, and dies after so many writes.
func (w *world) reconcile(writes int, now time.Time) {
	var owned []*appsv1.ReplicaSet
	for _, rs := range w.cached {
		owned = append(owned, rs)
	}
	slices.SortFunc(owned, func(a, b *appsv1.ReplicaSet) int { return cmp.Compare(a.Name, b.Name) })
	if !w.written.Seen(w.cachedD) || slices.ContainsFunc(owned, func(rs *appsv1.ReplicaSet) bool { return !w.written.Seen(rs) }) {
		return
	}
	for _, rs := range owned {
		w.written.Appeared(w.d.UID, rs.UID)
	}
	if len(w.written.Unseen(w.d.UID)) > 0 {
		return
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
		if writes--; writes < 0 {
			w.restart()
			return true
		}
		return false
	}
	if p.create != nil {
		if dies() || w.sets[p.create.Name] != nil {
			return
		}
		rs := p.create.DeepCopy()
		rs.UID, rs.CreationTimestamp, rs.Generation = types.UID(rs.Name), metav1.NewTime(now), 1
		w.stamp(rs)
		w.sets[rs.Name] = rs
		w.written.RecordCreated(w.d.UID, rs)
	}
	for _, rs := range p.update {
		if dies() || w.sets[rs.Name].ResourceVersion != rs.ResourceVersion {
			return // a conflict
		}
		next := rs.DeepCopy()
		next.Generation++
		w.stamp(next)
		w.sets[rs.Name] = next
		w.written.Record(next)
	}
	for _, rs := range p.remove {
		if dies() {
			return
		}
		if len(w.pods[rs.Name]) > 0 {
			panic("a set with pods is cleaned up")
		}
		delete(w.sets, rs.Name)
		delete(w.cached, rs.Name)
	}
	if p.status == nil || dies() || w.d.ResourceVersion != p.status.ResourceVersion {
		return
	}
	w.d.Status, w.d.Annotations = p.status.Status, p.status.Annotations
	w.stamp(w.d)
	w.written.Record(w.d)
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

// Templates change at any time, caches are stale, the controller dies: at no
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
				w.reconcile(1000, now)
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
				w.reconcile(rapid.IntRange(0, 5).Draw(t, "writes before death"), now)
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
