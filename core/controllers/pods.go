// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/dump"
	"k8s.io/utils/ptr"
)

// Owner is an object that controls pods: what PodWriter needs of it.
type Owner interface {
	runtime.Object
	metav1.Object
}

// PodWriter creates and deletes the pods of workload controllers and says so in
// events on the owner.
type PodWriter struct {
	Client   kubernetes.Interface
	Recorder record.EventRecorder
}

// Create makes a pod that the owner controls. Events on an owner in a namespace
// that is being deleted are left out: nothing can be created there, and nobody reads them.
func (w PodWriter) Create(ctx context.Context, owner Owner, pod *corev1.Pod) (*corev1.Pod, error) {
	created, err := w.Client.CoreV1().Pods(owner.GetNamespace()).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			w.Recorder.Eventf(owner, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return nil, err
	}
	Did(ctx, "created", "Pod", created)
	w.Recorder.Eventf(owner, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", created.Name)
	return created, nil
}

// Delete deletes a pod, this very one: a pod that was made anew under the same
// name is left alone. NotFound comes back as it is.
func (w PodWriter) Delete(ctx context.Context, owner Owner, pod *corev1.Pod) error {
	err := w.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, DeleteExactly(pod))
	switch {
	case apierrors.IsNotFound(err):
		return err
	case apierrors.IsConflict(err):
		// The UID differs: ours is gone.
		return apierrors.NewNotFound(corev1.Resource("pods"), pod.Name)
	case err != nil:
		w.Recorder.Eventf(owner, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		return fmt.Errorf("unable to delete pods: %w", err)
	}
	Did(ctx, "deleted", "Pod", pod)
	w.Recorder.Eventf(owner, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
	return nil
}

// Patch sends a strategic merge patch to a pod; it fits Claim.Patch.
func (w PodWriter) Patch(ctx context.Context, obj metav1.Object, patch []byte) error {
	_, err := w.Client.CoreV1().Pods(obj.GetNamespace()).Patch(ctx, obj.GetName(), types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}

// DeleteExactly are options that delete an object only if it is still this one.
func DeleteExactly(obj metav1.Object) metav1.DeleteOptions {
	if obj.GetUID() == "" {
		return metav1.DeleteOptions{}
	}
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(obj.GetUID())}}
}

// NewPod is a pod made of a template, with a generated name and one owner.
func NewPod(template *corev1.PodTemplateSpec, owner metav1.Object, ref *metav1.OwnerReference) *corev1.Pod {
	t := template.DeepCopy()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Labels:          t.Labels,
			Annotations:     t.Annotations,
			Finalizers:      t.Finalizers,
			GenerateName:    PodNamePrefix(owner.GetName()),
			OwnerReferences: []metav1.OwnerReference{*ref},
		},
		Spec: t.Spec,
	}
}

// PodNamePrefix is what the generated names of an owner's pods begin with.
func PodNamePrefix(owner string) string {
	prefix := owner + "-"
	if len(validation.NameIsDNSSubdomain(prefix, true)) > 0 {
		return owner
	}
	return prefix
}

// TemplateHash is the hash of a pod template that upstream puts in names and in
// the pod-template-hash label. Same template and collision count, same name: a
// cluster that comes from upstream keeps its ReplicaSets.
func TemplateHash(template *corev1.PodTemplateSpec, collisions *int32) string {
	h := fnv.New32a()
	// Writes to a hash never fail.
	_, _ = fmt.Fprintf(h, "%v", dump.ForHash(*template))
	if collisions != nil {
		var b [8]byte
		binary.LittleEndian.PutUint32(b[:], uint32(*collisions))
		_, _ = h.Write(b[:])
	}
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}

// SlowStart calls f n times, one at first and then twice as many at once after each
// batch without an error. It stops after a batch with one, so that n creations that
// all meet the same refusal (a quota) cost one request, not n. It returns how many
// calls succeeded and the first error.
func SlowStart(n int, f func(i int) error) (int, error) {
	done, ok := 0, 0
	for batch := min(n, 1); batch > 0; batch = min(2*batch, n-done) {
		errs := make(chan error, batch)
		var wg sync.WaitGroup
		for i := range batch {
			wg.Go(func() { errs <- f(done + i) })
		}
		wg.Wait()
		close(errs)
		done += batch
		var first error
		for err := range errs {
			if err == nil {
				ok++
			} else if first == nil {
				first = err
			}
		}
		if first != nil {
			return ok, first
		}
	}
	return ok, nil
}

// PodReady reports whether the pod's Ready condition is true.
func PodReady(pod *corev1.Pod) bool {
	c := PodCondition(pod, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// PodCondition is a condition in the pod's status, or nil.
func PodCondition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// PodAvailable reports whether a pod has been ready for minReadySeconds; if it is
// ready but not for long enough, wait is how long it still takes.
func PodAvailable(pod *corev1.Pod, minReadySeconds int32, now time.Time) (available bool, wait time.Duration) {
	c := PodCondition(pod, corev1.PodReady)
	if c == nil || c.Status != corev1.ConditionTrue {
		return false, 0
	}
	if minReadySeconds == 0 {
		return true, 0
	}
	if c.LastTransitionTime.IsZero() {
		return false, 0
	}
	wait = c.LastTransitionTime.Add(time.Duration(minReadySeconds) * time.Second).Sub(now)
	return wait <= 0, max(wait, 0)
}

// PodFinished reports whether the pod's containers have all ended for good.
func PodFinished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// PodActive reports whether a pod counts as a replica: neither finished nor on its way out.
func PodActive(pod *corev1.Pod) bool { return !PodFinished(pod) && pod.DeletionTimestamp == nil }

// PodTerminating reports whether a pod is on its way out and may still run.
func PodTerminating(pod *corev1.Pod) bool { return !PodFinished(pod) && pod.DeletionTimestamp != nil }

// Filter returns the elements for which keep is true, in a new slice.
func Filter[T any](all []T, keep func(T) bool) []T {
	var some []T
	for _, x := range all {
		if keep(x) {
			some = append(some, x)
		}
	}
	return some
}

const (
	byController = "wasmplane/controller"
	byNode       = "wasmplane/node"
	byClaim      = "wasmplane/claim"
)

// IndexByController lets Controlled find objects by their controller.
func IndexByController(informer cache.SharedIndexInformer) error {
	return AddIndex(informer, byController, func(obj any) ([]string, error) {
		o, ok := obj.(metav1.Object)
		if !ok {
			return nil, nil
		}
		if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
			return []string{string(ref.UID)}, nil
		}
		return []string{orphansIn(o.GetNamespace())}, nil
	})
}

// orphansIn cannot be mistaken for a UID.
func orphansIn(namespace string) string { return "orphans in " + namespace }

// Controlled are the cached objects that the owner controls and, with orphans,
// those of its namespace that nobody controls. The informer has IndexByController.
func Controlled[T metav1.Object](indexer cache.Indexer, owner metav1.Object, orphans bool) ([]T, error) {
	keys := []string{string(owner.GetUID())}
	if orphans {
		keys = append(keys, orphansIn(owner.GetNamespace()))
	}
	return Indexed[T](indexer, byController, keys...)
}

// IndexByNode lets PodsOn find pods by the node that they are bound to.
func IndexByNode(pods cache.SharedIndexInformer) error {
	return AddIndex(pods, byNode, func(obj any) ([]string, error) {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			return []string{pod.Spec.NodeName}, nil
		}
		return nil, nil
	})
}

// PodsOn are the cached pods that are bound to a node. The informer has IndexByNode.
func PodsOn(pods cache.Indexer, node string) ([]*corev1.Pod, error) {
	return Indexed[*corev1.Pod](pods, byNode, node)
}

// Indexed are the objects below keys of an index.
func Indexed[T any](indexer cache.Indexer, index string, keys ...string) ([]T, error) {
	var found []T
	for _, key := range keys {
		objects, err := indexer.ByIndex(index, key)
		if err != nil {
			return nil, err
		}
		for _, obj := range objects {
			if t, ok := obj.(T); ok {
				found = append(found, t)
			}
		}
	}
	return found, nil
}

// AddIndex adds an index unless another controller has added it before.
func AddIndex(informer cache.SharedIndexInformer, name string, f cache.IndexFunc) error {
	if _, there := informer.GetIndexer().GetIndexers()[name]; there {
		return nil
	}
	return informer.AddIndexers(cache.Indexers{name: f})
}

// PatchPodStatus sets a pod's phase (empty = as it is) and one condition (no type =
// none), leaving the rest of the status to whoever else writes it. A pod that is
// gone, or another one by now, is no error.
func PatchPodStatus(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, phase corev1.PodPhase,
	condition corev1.PodCondition,
) error {
	status := map[string]any{}
	if phase != "" {
		status["phase"] = phase
	}
	if condition.Type != "" {
		status["conditions"] = []corev1.PodCondition{condition}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("patching the status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
}

// IndexByClaim lets PodsWithClaim find pods by the claims that they name.
func IndexByClaim(pods cache.SharedIndexInformer) error {
	return AddIndex(pods, byClaim, func(obj any) ([]string, error) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return nil, nil
		}
		var keys []string
		for _, key := range PodClaims(pod) {
			keys = append(keys, key.String())
		}
		return keys, nil
	})
}

// PodsWithClaim are the cached pods that name a claim. The informer has IndexByClaim.
func PodsWithClaim(pods cache.Indexer, claim Key) ([]*corev1.Pod, error) {
	return Indexed[*corev1.Pod](pods, byClaim, claim.String())
}

// PodClaims are the claims that a pod names, those of its ephemeral volumes included.
func PodClaims(pod *corev1.Pod) []Key {
	var keys []Key
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			keys = append(keys, Key{Namespace: pod.Namespace, Name: v.PersistentVolumeClaim.ClaimName})
		case v.Ephemeral != nil:
			keys = append(keys, Key{Namespace: pod.Namespace, Name: pod.Name + "-" + v.Name})
		}
	}
	return keys
}
