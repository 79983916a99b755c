// SPDX-License-Identifier: Apache-2.0

package reconcilehost

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// carryOut does what the plan says, in its order, and stops at the first error: the
// next reconcile plans again from what was done until then.
func (l *loop) carryOut(ctx context.Context, s controllers.Snapshot, plan controllers.Plan, m *recall) error {
	if s.Primary == nil && (len(plan.Apply) > 0 || plan.Status != nil || len(plan.Conditions) > 0) {
		return errors.New("the plan applies something for an object that is gone; for a snapshot without primary it may only delete")
	}
	for i, obj := range plan.Apply {
		if err := l.apply(ctx, s, obj, m); err != nil {
			return fmt.Errorf("apply[%d]: %w", i, err)
		}
	}
	for i := range plan.Patch {
		if err := l.patch(ctx, s, &plan.Patch[i]); err != nil {
			return fmt.Errorf("patch[%d]: %w", i, err)
		}
	}
	for i, target := range plan.Delete {
		if err := l.delete(ctx, s, target); err != nil {
			return fmt.Errorf("delete[%d]: %w", i, err)
		}
	}
	l.recordEvents(s, plan.Events, m)
	return l.applyStatus(ctx, s, plan, m)
}

// resource finds where objects of a kind are reached by the reconciler's own client.
func (l *loop) resource(gvk schema.GroupVersionKind, namespace string) (dynamic.ResourceInterface, bool, error) {
	mapping, err := l.cfg.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, false, fmt.Errorf("the server has no kind %s: %w", gvk, err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return l.client.Resource(mapping.Resource), false, nil
	}
	if namespace == "" {
		return nil, true, fmt.Errorf("an object of kind %s needs a namespace", gvk.Kind)
	}
	return l.client.Resource(mapping.Resource).Namespace(namespace), true, nil
}

func (l *loop) apply(ctx context.Context, s controllers.Snapshot, given *unstructured.Unstructured, m *recall) error {
	obj := given.DeepCopy()
	gvk := obj.GroupVersionKind()
	if gvk.Kind == "" || gvk.Version == "" || obj.GetName() == "" {
		return fmt.Errorf("an object to apply needs apiVersion, kind and metadata.name; got %s %q", gvk, obj.GetName())
	}
	if obj.GetNamespace() == "" {
		obj.SetNamespace(s.Namespace)
	}
	client, namespaced, err := l.resource(gvk, obj.GetNamespace())
	if err != nil {
		return err
	}
	if !namespaced {
		obj.SetNamespace("")
	}
	obj.SetManagedFields(nil)
	key := objectKey{gvk.GroupKind(), obj.GetNamespace(), obj.GetName()}

	ours, current, err := l.belongs(ctx, client, s, key)
	if err != nil {
		return err
	}
	if ours && ownable(s, obj) {
		obj.SetOwnerReferences(withOwner(obj.GetOwnerReferences(), l.ownerReference(s.Primary)))
	}
	hash := hashOf(obj.Object)
	if last, ok := m.applied[key]; ok && last.hash == hash && current != "" && last.version == current {
		return nil // nothing changed on either side since
	}
	result, err := client.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: l.reconciler.Name(), Force: ours})
	if err != nil {
		return fmt.Errorf("%s %s/%s: %w", gvk.Kind, obj.GetNamespace(), obj.GetName(), err)
	}
	if m.applied == nil {
		m.applied = map[objectKey]applied{}
	}
	m.applied[key] = applied{hash, result.GetResourceVersion()}
	if result.GetResourceVersion() != current {
		controllers.Did(ctx, "applied", gvk.Kind, result)
	}
	return nil
}

// belongs reports whether an object is the reconciler's to own: it doesn't exist yet,
// or the primary controls it, or it is the primary. Fields of somebody else's object
// can be applied too, but it is not adopted (it would be deleted with the primary),
// and a conflict about a field is an error. current is the version as known.
func (l *loop) belongs(ctx context.Context, client dynamic.ResourceInterface, s controllers.Snapshot,
	key objectKey,
) (ours bool, current string, err error) {
	for _, o := range append([]*unstructured.Unstructured{s.Primary}, s.Owned...) {
		if o.GroupVersionKind().GroupKind() == key.kind && o.GetNamespace() == key.namespace && o.GetName() == key.name {
			return true, o.GetResourceVersion(), nil
		}
	}
	there, err := client.Get(ctx, key.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, "", nil
	}
	if err != nil {
		return false, "", fmt.Errorf("looking at %s %s/%s before applying to it: %w", key.kind.Kind, key.namespace, key.name, err)
	}
	return metav1.IsControlledBy(there, s.Primary), there.GetResourceVersion(), nil
}

// ownable: references across namespaces, or from the cluster into a namespace, are
// not allowed; an object doesn't own itself.
func ownable(s controllers.Snapshot, obj *unstructured.Unstructured) bool {
	if obj.GroupVersionKind().GroupKind() == s.Primary.GroupVersionKind().GroupKind() && obj.GetName() == s.Name &&
		obj.GetNamespace() == s.Namespace {
		return false
	}
	return s.Primary.GetNamespace() == "" || s.Primary.GetNamespace() == obj.GetNamespace()
}

func (l *loop) ownerReference(primary *unstructured.Unstructured) metav1.OwnerReference {
	gvk := primary.GroupVersionKind()
	return metav1.OwnerReference{
		APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: primary.GetName(), UID: primary.GetUID(),
		Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}
}

func withOwner(refs []metav1.OwnerReference, owner metav1.OwnerReference) []metav1.OwnerReference {
	refs = slices.DeleteFunc(refs, func(r metav1.OwnerReference) bool { return r.UID == owner.UID })
	return append(refs, owner)
}

// patch sends a JSON patch. One that changed nothing leaves no trace.
func (l *loop) patch(ctx context.Context, s controllers.Snapshot, p *controllers.Patch) error {
	if p.Kind.Kind == "" || p.Name == "" {
		return fmt.Errorf("an object to patch needs kind and name; got %s %q", p.Kind, p.Name)
	}
	namespace := p.Namespace
	if namespace == "" {
		namespace = s.Namespace
	}
	client, _, err := l.resource(p.Kind, namespace)
	if err != nil {
		return err
	}
	data := p.JSON
	if p.UID != "" {
		if data, err = guarded(data, p.UID); err != nil {
			return fmt.Errorf("%s %s/%s: %w", p.Kind.Kind, namespace, p.Name, err)
		}
	}
	var sub []string
	if p.Subresource != "" {
		sub = []string{p.Subresource}
	}
	result, err := client.Patch(ctx, p.Name, types.JSONPatchType, data, metav1.PatchOptions{FieldManager: l.reconciler.Name()}, sub...)
	if err != nil {
		return fmt.Errorf("%s %s/%s: %w", p.Kind.Kind, namespace, p.Name, err)
	}
	controllers.Did(ctx, fmt.Sprintf("patched %s %s", p.Kind.Kind, p.Name), p.Kind.Kind, result)
	return nil
}

// guarded puts a test of the UID in front of a patch.
func guarded(patch []byte, uid string) ([]byte, error) {
	var ops []json.RawMessage
	if err := json.Unmarshal(patch, &ops); err != nil {
		return nil, fmt.Errorf("a JSON patch is a list of operations: %w", err)
	}
	test, err := json.Marshal(map[string]string{"op": "test", "path": "/metadata/uid", "value": uid})
	if err != nil {
		return nil, err
	}
	return json.Marshal(slices.Insert(ops, 0, json.RawMessage(test)))
}

func (l *loop) delete(ctx context.Context, s controllers.Snapshot, t controllers.Deletion) error {
	if t.Kind.Kind == "" || t.Name == "" {
		return fmt.Errorf("an object to delete needs kind and name; got %s %q", t.Kind, t.Name)
	}
	namespace := t.Namespace
	if namespace == "" {
		namespace = s.Namespace
	}
	client, _, err := l.resource(t.Kind, namespace)
	if err != nil {
		return err
	}
	opts := metav1.DeleteOptions{PropagationPolicy: ptr.To(cmp.Or(t.Propagation, metav1.DeletePropagationBackground))}
	if t.UID != "" || t.ResourceVersion != "" {
		opts.Preconditions = &metav1.Preconditions{}
	}
	if t.UID != "" {
		opts.Preconditions.UID = ptr.To(types.UID(t.UID))
	}
	if t.ResourceVersion != "" {
		opts.Preconditions.ResourceVersion = &t.ResourceVersion
	}
	err = client.Delete(ctx, t.Name, opts)
	if apierrors.IsNotFound(err) || (t.UID != "" && t.ResourceVersion == "" && apierrors.IsConflict(err)) {
		return nil // it is gone, or another one by now
	}
	if err != nil {
		return fmt.Errorf("%s %s/%s: %w", t.Kind.Kind, namespace, t.Name, err)
	}
	controllers.Did(ctx, fmt.Sprintf("deleted %s %s", t.Kind.Kind, t.Name), t.Kind.Kind, nil)
	return nil
}

// applyStatus applies status and conditions as one, so that neither drops the other.
func (l *loop) applyStatus(ctx context.Context, s controllers.Snapshot, plan controllers.Plan, m *recall) error {
	if plan.Status == nil && len(plan.Conditions) == 0 {
		return nil
	}
	status := runtime.DeepCopyJSON(plan.Status)
	if status == nil {
		status = map[string]any{}
	}
	if len(plan.Conditions) > 0 {
		conditions, err := l.conditions(s, plan.Conditions)
		if err != nil {
			return err
		}
		status["conditions"] = conditions
	}
	hash := hashOf(status)
	if m.status == hash && m.seen == s.Primary.GetResourceVersion() {
		return nil
	}
	if contains(s.Primary.Object["status"], status) && m.status == hash {
		return nil
	}
	gvk := s.Primary.GroupVersionKind()
	obj := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	obj.SetGroupVersionKind(gvk)
	obj.SetName(s.Name)
	obj.SetNamespace(s.Namespace)
	client := dynamic.ResourceInterface(l.client.Resource(l.in.Primary.Resource))
	if s.Namespace != "" {
		client = l.client.Resource(l.in.Primary.Resource).Namespace(s.Namespace)
	}
	result, err := client.ApplyStatus(ctx, s.Name, obj, metav1.ApplyOptions{FieldManager: l.reconciler.Name(), Force: true})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the status of %s %s/%s cannot be applied: the object is gone, or its kind has no status subresource: %w", gvk.Kind, s.Namespace, s.Name, err)
	}
	if err != nil {
		return fmt.Errorf("status of %s %s/%s: %w", gvk.Kind, s.Namespace, s.Name, err)
	}
	m.status, m.seen = hash, result.GetResourceVersion()
	if result.GetResourceVersion() != s.Primary.GetResourceVersion() {
		controllers.Did(ctx, "status applied", gvk.Kind, nil)
	}
	return nil
}

// conditions completes what the reconciler leaves out: the generation it looked at,
// and the time since when a condition has its status.
func (l *loop) conditions(s controllers.Snapshot, given []metav1.Condition) ([]any, error) {
	there, _, _ := unstructured.NestedSlice(s.Primary.Object, "status", "conditions")
	list := make([]any, 0, len(given))
	for _, c := range given {
		if c.Type == "" || c.Status == "" {
			return nil, fmt.Errorf("a condition needs type and status; got %q %q", c.Type, c.Status)
		}
		if c.Reason == "" {
			c.Reason = c.Type
		}
		if c.ObservedGeneration == 0 {
			c.ObservedGeneration = s.Primary.GetGeneration()
		}
		if c.LastTransitionTime.IsZero() {
			c.LastTransitionTime = metav1.NewTime(s.Now)
		}
		obj, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&c)
		if err != nil {
			return nil, err
		}
		for _, was := range there {
			former, ok := was.(map[string]any)
			if ok && former["type"] == c.Type && former["status"] == string(c.Status) && former["lastTransitionTime"] != nil {
				obj["lastTransitionTime"] = former["lastTransitionTime"]
			}
		}
		list = append(list, obj)
	}
	return list, nil
}

// contains reports whether all that is wanted is there already.
func contains(there, wanted any) bool {
	switch w := wanted.(type) {
	case map[string]any:
		t, ok := there.(map[string]any)
		if !ok {
			return len(w) == 0 && there == nil
		}
		for k, v := range w {
			if !contains(t[k], v) {
				return false
			}
		}
		return true
	case []any:
		t, ok := there.([]any)
		if !ok {
			return len(w) == 0 && there == nil
		}
		for _, v := range w {
			if !slices.ContainsFunc(t, func(x any) bool { return contains(x, v) }) {
				return false
			}
		}
		return true
	default:
		return fmt.Sprint(there) == fmt.Sprint(wanted)
	}
}

func hashOf(v any) uint64 {
	b, err := json.Marshal(v) // keys come sorted
	if err != nil {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write(b) // a hash takes everything
	return h.Sum64()
}
