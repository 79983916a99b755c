// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"context"
	"errors"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
)

// inVersion finds the resource of a kind in its group version.
func (s *sources) inVersion(gvk schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	list, err := s.discovery.ServerResourcesForGroupVersion(gvk.GroupVersion().String())
	if err != nil && !apierrors.IsNotFound(err) {
		return schema.GroupVersionResource{}, err
	}
	if err == nil {
		for _, r := range list.APIResources {
			if r.Kind == gvk.Kind && !isSubresource(r.Name) {
				return gvk.GroupVersion().WithResource(r.Name), nil
			}
		}
	}
	return schema.GroupVersionResource{}, &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
}

func isSubresource(name string) bool {
	for _, c := range name {
		if c == '/' {
			return true
		}
	}
	return false
}

func noSuch(err error) bool {
	var none *meta.NoKindMatchError
	return errors.As(err, &none)
}

// scaled is a target as it was read.
type scaled struct {
	client dynamic.ResourceInterface
	scale  *unstructured.Unstructured
	target
}

// find reads the scale of what an autoscaler refers to, which is the same for every kind.
func (c *Controller) find(ctx context.Context, namespace string, ref autoscalingv2.CrossVersionObjectReference) (*scaled, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, err
	}
	found, err := c.sources.resourceOf(gv.WithKind(ref.Kind))
	if err != nil {
		return nil, err
	}
	s := &scaled{client: c.dynamic.Resource(found).Namespace(namespace)}
	return s, s.read(ctx, ref.Name)
}

func (s *scaled) read(ctx context.Context, name string) (err error) {
	if s.scale, err = s.client.Get(ctx, name, metav1.GetOptions{}, "scale"); err != nil {
		return err
	}
	var scale autoscalingv1.Scale
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(s.scale.Object, &scale); err != nil {
		return fmt.Errorf("read the scale of %s: %w", name, err)
	}
	s.target = target{wanted: scale.Spec.Replicas, there: scale.Status.Replicas, selector: scale.Status.Selector}
	return nil
}

// write sets the size. Somebody who writes the target at the same time is not
// overwritten: its new state is read, and gets the size all the same.
func (s *scaled) write(ctx context.Context, replicas int32) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := unstructured.SetNestedField(s.scale.Object, int64(replicas), "spec", "replicas"); err != nil {
			return err
		}
		_, err := s.client.Update(ctx, s.scale, metav1.UpdateOptions{}, "scale")
		if apierrors.IsConflict(err) {
			if readErr := s.read(ctx, s.scale.GetName()); readErr != nil {
				return readErr
			}
		}
		return err
	})
}
