// SPDX-License-Identifier: Apache-2.0

// Package revision keeps the history of workloads that update their pods
// themselves, DaemonSets and StatefulSets: one ControllerRevision for each pod
// template that they had, which kubectl rollout history and undo read.
package revision

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// ErrCollision says that another template has the name that a revision would
// get; with a higher collision count it gets another one.
var ErrCollision = errors.New("another revision has this name")

// Store reads and writes revisions.
type Store struct {
	client  kubernetes.Interface
	indexer cache.Indexer
	// Informer is what the cache is filled by.
	Informer cache.SharedIndexInformer
}

// NewStore makes a store over the shared informers.
func NewStore(client kubernetes.Interface, f informers.SharedInformerFactory) (*Store, error) {
	informer := f.Apps().V1().ControllerRevisions().Informer()
	if err := controllers.IndexByController(informer); err != nil {
		return nil, fmt.Errorf("indexing revisions by controller: %w", err)
	}
	return &Store{client: client, indexer: informer.GetIndexer(), Informer: informer}, nil
}

// Owned are the revisions of an owner, oldest first, after adopting and releasing.
func (s *Store) Owned(ctx context.Context, owner metav1.Object, kind schema.GroupVersionKind, selector labels.Selector,
	fresh func(context.Context) (metav1.Object, error),
) ([]*appsv1.ControllerRevision, error) {
	all, err := controllers.Controlled[*appsv1.ControllerRevision](s.indexer, owner, true)
	if err != nil {
		return nil, err
	}
	mine, err := controllers.ClaimAll(ctx, &controllers.Claim{
		Owner: owner, Kind: kind, Selector: selector, Fresh: fresh,
		Patch: func(ctx context.Context, obj metav1.Object, patch []byte) error {
			_, err := s.client.AppsV1().ControllerRevisions(obj.GetNamespace()).Patch(ctx, obj.GetName(), types.StrategicMergePatchType, patch,
				metav1.PatchOptions{})
			return err
		},
	}, all)
	Sort(mine)
	return mine, err
}

// Sort puts the oldest first.
func Sort(all []*appsv1.ControllerRevision) {
	slices.SortFunc(all, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}

// Create stores a revision, or returns the equal one that is there already.
func (s *Store) Create(ctx context.Context, r *appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	created, err := s.client.AppsV1().ControllerRevisions(r.Namespace).Create(ctx, r, metav1.CreateOptions{})
	if err == nil {
		controllers.Did(ctx, "created", "ControllerRevision", created)
		return created, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("creating revision %s: %w", r.Name, err)
	}
	there, err := s.client.AppsV1().ControllerRevisions(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading revision %s that is in the way: %w", r.Name, err)
	}
	if !Same(there.Data.Raw, r.Data.Raw) {
		return nil, fmt.Errorf("%s: %w", r.Name, ErrCollision)
	}
	return there, nil
}

// Renumber gives a revision a higher number: it is being rolled back to.
func (s *Store) Renumber(ctx context.Context, r *appsv1.ControllerRevision, number int64) (*appsv1.ControllerRevision, error) {
	if r.Revision >= number {
		return r, nil
	}
	next := r.DeepCopy()
	next.Revision = number
	updated, err := s.client.AppsV1().ControllerRevisions(r.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("renumbering revision %s: %w", r.Name, err)
	}
	controllers.Did(ctx, "renumbered", "ControllerRevision", updated)
	return updated, nil
}

// Prune deletes the oldest revisions beyond the limit that are not in use.
func (s *Store) Prune(ctx context.Context, old []*appsv1.ControllerRevision, limit int, used func(*appsv1.ControllerRevision) bool) error {
	unused := controllers.Filter(old, func(r *appsv1.ControllerRevision) bool { return !used(r) })
	for _, r := range unused[:max(min(len(old)-limit, len(unused)), 0)] {
		err := s.client.AppsV1().ControllerRevisions(r.Namespace).Delete(ctx, r.Name, controllers.DeleteExactly(r))
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting revision %s: %w", r.Name, err)
		}
		controllers.Did(ctx, "cleaned up", "ControllerRevision", r)
	}
	return nil
}

// Data is what a revision remembers: a patch that puts the pod template back.
func Data(template *corev1.PodTemplateSpec) ([]byte, error) {
	body, err := json.Marshal(template)
	if err != nil {
		return nil, err
	}
	var t map[string]any
	if err := json.Unmarshal(body, &t); err != nil {
		return nil, err
	}
	t["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": t}})
}

// Template reads the pod template back out of a revision's data.
func Template(data []byte) (*corev1.PodTemplateSpec, error) {
	var patch struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, fmt.Errorf("reading a revision's template: %w", err)
	}
	return &patch.Spec.Template, nil
}

// Same compares data of revisions, whatever their formatting.
func Same(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
