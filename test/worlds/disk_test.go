// SPDX-License-Identifier: Apache-2.0

package worlds

import (
	"context"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/memstore"
)

// disk is the store, which looks at each write for what must never be.
type disk struct {
	*memstore.Store
	w        *world
	contract *api.Contract

	mu      sync.Mutex
	pods    map[string]*corev1.Pod // by key
	most    map[string]int32       // the most replicas that somebody wanted of an owner, by UID
	sets    map[string]*appsv1.ReplicaSet
	ends    map[string]map[string]corev1.PodPhase // by Job and pod: how each pod ended, deleted ones as Failed; by UIDs
	claims  map[string]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
	history []podWrite // of all pods, in the order of their revisions

	writes int            // since the world began
	minute map[string]int // writes by the first parts of their keys, since begun
	begun  time.Time
}

func newDisk(contract *api.Contract, w *world) *disk {
	return &disk{
		Store: memstore.New(), w: w, contract: contract, pods: map[string]*corev1.Pod{}, most: map[string]int32{},
		minute: map[string]int{},
		sets:   map[string]*appsv1.ReplicaSet{}, ends: map[string]map[string]corev1.PodPhase{},
		claims: map[string]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{},
	}
}

// Put implements store.Store.
func (d *disk) Put(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration) (int64, error) {
	o := d.decode(key, value)
	d.mu.Lock() // so that writes are looked at in their order
	defer d.mu.Unlock()
	revision, err := d.Store.Put(ctx, key, value, expect, ttl)
	if err == nil {
		d.counted(key)
		d.wrote(key, revision, false)
		d.written(key, o)
	}
	return revision, err
}

// mostAMinute is how many writes there may be of one resource in a minute of the world.
// What a user asks for in that time makes a few dozen; loops that answer each other, a
// thousand and more.
const mostAMinute = 1000

// counted holds the writes of this minute against how many there may be.
func (d *disk) counted(key string) {
	if now := time.Now(); now.Sub(d.begun) > time.Minute {
		d.begun = now
		clear(d.minute)
	}
	d.writes++
	_, rest, _ := strings.Cut(strings.TrimPrefix(key, "/"), "/")
	resource, _, _ := strings.Cut(rest, "/")
	if d.minute[resource]++; d.minute[resource] == mostAMinute {
		d.w.fail("%d writes of %s in %s, the last of %s", mostAMinute, resource, time.Since(d.begun).Round(time.Second), key)
	}
}

// written so far.
func (d *disk) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.writes
}

// Delete implements store.Store.
func (d *disk) Delete(ctx context.Context, key string, expect int64) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	revision, err := d.Store.Delete(ctx, key, expect)
	if err == nil {
		d.counted(key)
		if p := d.pods[key]; p != nil {
			d.w.say("  pod %s is gone", p.Name)
			d.ended(p, corev1.PodFailed)
		}
		d.wrote(key, revision, true)
		delete(d.pods, key)
		delete(d.sets, key)
		delete(d.claims, key)
		delete(d.volumes, key)
	}
	return revision, err
}

var _ store.Store = (*disk)(nil)

// kindOf finds the resource whose key it is, of those that are looked at.
func kindOf(key string) (schema.GroupResource, bool) {
	for prefix, gr := range map[string]schema.GroupResource{
		"/registry/pods/":                   {Resource: "pods"},
		"/registry/replicasets/":            {Group: "apps", Resource: "replicasets"},
		"/registry/deployments/":            {Group: "apps", Resource: "deployments"},
		"/registry/statefulsets/":           {Group: "apps", Resource: "statefulsets"},
		"/registry/jobs/":                   {Group: "batch", Resource: "jobs"},
		"/registry/persistentvolumeclaims/": {Resource: "persistentvolumeclaims"},
		"/registry/persistentvolumes/":      {Resource: "persistentvolumes"},
	} {
		if strings.HasPrefix(key, prefix) {
			return gr, true
		}
	}
	return schema.GroupResource{}, false
}

func (d *disk) decode(key string, value []byte) runtime.Object {
	gr, ok := kindOf(key)
	if !ok {
		return nil
	}
	r, _ := d.contract.Resource(gr)
	o, err := d.contract.DecodeStorage(r, value)
	if err == nil {
		var v runtime.Object
		if v, err = o.Versioned(); err == nil {
			return v
		}
	}
	d.w.fail("%s was written and cannot be read: %v", key, err)
	return nil
}

// written looks at a write.
func (d *disk) written(key string, o runtime.Object) {
	switch o := o.(type) {
	case *corev1.Pod:
		was := d.pods[key]
		d.pods[key] = o
		d.pod(o, was)
	case *appsv1.ReplicaSet:
		d.wanted(o, ptr.Deref(o.Spec.Replicas, 1))
		d.sets[key] = o
		d.rollout(o)
	case *appsv1.Deployment:
		d.wanted(o, ptr.Deref(o.Spec.Replicas, 1))
	case *corev1.PersistentVolumeClaim:
		was := d.claims[key]
		d.claims[key] = o
		d.claim(o, was)
	case *corev1.PersistentVolume:
		was := d.volumes[key]
		d.volumes[key] = o
		d.volume(o, was)
	case *appsv1.StatefulSet:
		d.wanted(o, ptr.Deref(o.Spec.Replicas, 1))
	case *batchv1.Job:
		d.wanted(o, ptr.Deref(o.Spec.Parallelism, 1))
		if most := ptr.Deref(o.Spec.Completions, 1); o.Status.Succeeded > most+int32(d.w.lost["pods"]) {
			d.w.fail("Job %s has counted %d pods that succeeded, and %d were wanted", o.Name, o.Status.Succeeded, most)
		}
		d.job(o)
	}
}

func (d *disk) wanted(o metav1.Object, n int32) {
	if most := d.most[string(o.GetUID())]; n > most {
		d.w.say("  %s (%s) wants %d pods", o.GetName(), o.GetUID(), n)
		d.most[string(o.GetUID())] = n
	}
}

// podKey is the name of the pod whose key it is.
func podKey(key string) (string, bool) {
	return strings.CutPrefix(key, "/registry/pods/"+namespace+"/")
}

// rollout holds the pods that a Deployment's sets are to have together against what it may
// have: the most it ever wanted, and a quarter more, which is the surge.
func (d *disk) rollout(rs *appsv1.ReplicaSet) {
	owner := metav1.GetControllerOf(rs)
	if owner == nil {
		return
	}
	most, known := d.most[string(owner.UID)]
	if !known {
		return
	}
	sum := int32(0)
	for _, o := range d.sets {
		if c := metav1.GetControllerOf(o); c != nil && c.UID == owner.UID {
			sum += ptr.Deref(o.Spec.Replicas, 1)
		}
	}
	if sum > most+(most+3)/4 {
		d.w.fail("the sets of Deployment %s are to have %d pods together, and it never wanted more than %d: the last written is %s", owner.Name, sum, most, rs.Name)
	}
}

// ended remembers how a pod of a Job ended. What it ended as first counts.
func (d *disk) ended(p *corev1.Pod, as corev1.PodPhase) {
	owner := metav1.GetControllerOf(p)
	if owner == nil || owner.Kind != "Job" {
		return
	}
	pods := d.ends[string(owner.UID)]
	if pods == nil {
		pods = map[string]corev1.PodPhase{}
		d.ends[string(owner.UID)] = pods
	}
	if _, known := pods[string(p.UID)]; !known {
		pods[string(p.UID)] = as
	}
}

// job holds what a Job has counted against how its pods ended: it counts none twice. Pods
// that are being deleted may be counted as failed before they have ended.
func (d *disk) job(j *batchv1.Job) {
	succeeded, failed := int32(0), int32(0)
	for _, as := range d.ends[string(j.UID)] {
		if as == corev1.PodSucceeded {
			succeeded++
		} else {
			failed++
		}
	}
	for _, p := range d.pods {
		if _, known := d.ends[string(j.UID)][string(p.UID)]; !known && p.DeletionTimestamp != nil && metav1.IsControlledBy(p, j) {
			failed++
		}
	}
	s, u := j.Status, ptr.Deref(j.Status.UncountedTerminatedPods, batchv1.UncountedTerminatedPods{})
	if n := s.Succeeded + int32(len(u.Succeeded)); n > succeeded {
		d.w.fail("Job %s has counted %d pods that succeeded, and %d have", j.Name, n, succeeded)
	}
	// A pod that was counted as failed while it was being deleted may succeed after that.
	if n := s.Failed + int32(len(u.Failed)) + s.Succeeded + int32(len(u.Succeeded)); n > succeeded+failed {
		d.w.fail("Job %s has counted %d pods that ended, and %d have", j.Name, n, succeeded+failed)
	}
}

// claim holds a claim against the others: a volume is bound to one, and a claim keeps its volume.
func (d *disk) claim(c, was *corev1.PersistentVolumeClaim) {
	if was != nil && was.UID == c.UID && was.Spec.VolumeName != "" && was.Spec.VolumeName != c.Spec.VolumeName {
		d.w.fail("claim %s had the volume %s and has %q", c.Name, was.Spec.VolumeName, c.Spec.VolumeName)
	}
	if c.Status.Phase == corev1.ClaimLost {
		d.w.fail("claim %s has lost its volume %s", c.Name, c.Spec.VolumeName)
	}
	if c.Status.Phase != corev1.ClaimBound {
		return
	}
	for _, o := range d.claims {
		if o.UID != c.UID && o.Status.Phase == corev1.ClaimBound && o.Spec.VolumeName == c.Spec.VolumeName {
			d.w.fail("volume %s is bound to the claims %s and %s", c.Spec.VolumeName, o.Name, c.Name)
		}
	}
}

// volume holds a volume against the claim that it was bound to before.
func (d *disk) volume(v, was *corev1.PersistentVolume) {
	if was == nil || was.UID != v.UID || was.Spec.ClaimRef == nil || was.Spec.ClaimRef.UID == "" {
		return
	}
	if ref := v.Spec.ClaimRef; ref != nil && ref.UID == was.Spec.ClaimRef.UID {
		return
	}
	for _, c := range d.claims {
		if c.UID == was.Spec.ClaimRef.UID && c.Spec.VolumeName == v.Name {
			d.w.fail("volume %s was taken from claim %s, which has it", v.Name, c.Name)
		}
	}
}

// active says whether a pod counts for its owner.
func active(p *corev1.Pod) bool { return p.DeletionTimestamp == nil && !finished(p) }

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func (d *disk) pod(p, was *corev1.Pod) {
	if was == nil || was.UID != p.UID {
		d.made(p)
		return
	}
	if finished(p) {
		d.ended(p, p.Status.Phase)
	}
	if was.Spec.NodeName != "" && was.Spec.NodeName != p.Spec.NodeName {
		d.w.fail("pod %s went from %s to %s", p.Name, was.Spec.NodeName, p.Spec.NodeName)
	}
	if was.DeletionTimestamp == nil && p.DeletionTimestamp != nil {
		d.w.say("  pod %s is to go", p.Name)
	}
	if finished(was) && !finished(p) {
		d.w.fail("pod %s was %s and is %s", p.Name, was.Status.Phase, p.Status.Phase)
	}
	if was.DeletionTimestamp != nil && p.DeletionTimestamp == nil {
		d.w.fail("the deletion of pod %s was taken back", p.Name)
	}
}

// made holds a new pod against how many its owner ever wanted.
func (d *disk) made(p *corev1.Pod) {
	owner := metav1.GetControllerOf(p)
	if owner == nil {
		return
	}
	d.w.say("  pod %s is made, of %s (%s)", p.Name, owner.Name, owner.UID)
	most, known := d.most[string(owner.UID)]
	if !known {
		return // a DaemonSet
	}
	n := int32(0)
	for _, o := range d.pods {
		if c := metav1.GetControllerOf(o); c != nil && c.UID == owner.UID && active(o) {
			n++
		}
	}
	// Who gets no answer to a create makes another pod, and deletes one when it sees both.
	if n > most+int32(d.w.lost["pods"]) {
		d.w.fail("%s %s has %d active pods, and never wanted more than %d: %s is one too many", owner.Kind, owner.Name, n, most, p.Name)
	}
}
