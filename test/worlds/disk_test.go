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

	mu   sync.Mutex
	pods map[string]*corev1.Pod // by key
	most map[string]int32       // the most replicas that somebody wanted of an owner, by UID
}

func newDisk(contract *api.Contract, w *world) *disk {
	return &disk{Store: memstore.New(), w: w, contract: contract, pods: map[string]*corev1.Pod{}, most: map[string]int32{}}
}

// Put implements store.Store.
func (d *disk) Put(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration) (int64, error) {
	o := d.decode(key, value)
	d.mu.Lock() // so that writes are looked at in their order
	defer d.mu.Unlock()
	revision, err := d.Store.Put(ctx, key, value, expect, ttl)
	if err == nil {
		d.written(key, o)
	}
	return revision, err
}

// Delete implements store.Store.
func (d *disk) Delete(ctx context.Context, key string, expect int64) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	revision, err := d.Store.Delete(ctx, key, expect)
	if err == nil {
		if p := d.pods[key]; p != nil {
			d.w.say("  pod %s is gone", p.Name)
		}
		delete(d.pods, key)
	}
	return revision, err
}

var _ store.Store = (*disk)(nil)

// kindOf finds the resource whose key it is, of those that are looked at.
func kindOf(key string) (schema.GroupResource, bool) {
	for prefix, gr := range map[string]schema.GroupResource{
		"/registry/pods/":         {Resource: "pods"},
		"/registry/replicasets/":  {Group: "apps", Resource: "replicasets"},
		"/registry/statefulsets/": {Group: "apps", Resource: "statefulsets"},
		"/registry/jobs/":         {Group: "batch", Resource: "jobs"},
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
	case *appsv1.StatefulSet:
		d.wanted(o, ptr.Deref(o.Spec.Replicas, 1))
	case *batchv1.Job:
		d.wanted(o, ptr.Deref(o.Spec.Parallelism, 1))
		if most := ptr.Deref(o.Spec.Completions, 1); o.Status.Succeeded > most {
			d.w.fail("Job %s has counted %d pods that succeeded, and %d were wanted", o.Name, o.Status.Succeeded, most)
		}
	}
}

func (d *disk) wanted(o metav1.Object, n int32) {
	if most := d.most[string(o.GetUID())]; n > most {
		d.w.say("  %s (%s) wants %d pods", o.GetName(), o.GetUID(), n)
		d.most[string(o.GetUID())] = n
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
