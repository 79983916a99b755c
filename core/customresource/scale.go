// SPDX-License-Identifier: Apache-2.0

package customresource

import (
	"fmt"
	"math"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// notSet stands in a Scale for replicas that the object does not have, so that
// an update that sets none can be told from one that sets zero.
const notSet = math.MinInt32

// scale implements api.CustomScale for one version.
type scale struct {
	version  *customVersion
	spec     string // the path as the definition has it
	replicas []string
	have     []string
	selector []string // empty = there is none
	paths    managedfields.ResourcePathMappings
}

func newScale(v *customVersion, s *apiextensions.CustomResourceSubresourceScale) *scale {
	out := &scale{
		version: v, spec: s.SpecReplicasPath, replicas: split(s.SpecReplicasPath), have: split(s.StatusReplicasPath),
		paths: managedfields.ResourcePathMappings{},
	}
	if s.LabelSelectorPath != nil && *s.LabelSelectorPath != "" {
		out.selector = split(*s.LabelSelectorPath)
	}
	for name, other := range v.def.versions {
		gv := v.def.gv(name).String()
		out.paths[gv] = nil
		if os := other.scale(); os != nil {
			var path fieldpath.Path
			for _, element := range split(os.SpecReplicasPath) {
				path = append(path, fieldpath.PathElement{FieldName: &element})
			}
			out.paths[gv] = path
		}
	}
	return out
}

// split reads a simple JSON path: ".spec.replicas".
func split(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }

func (s *scale) fields(u *unstructured.Unstructured) *managedfields.ScaleHandler {
	return managedfields.NewScaleHandler(u.GetManagedFields(), s.version.codec.gvk.GroupVersion(), s.paths)
}

// From implements api.CustomScale.
func (s *scale) From(u *unstructured.Unstructured, forUpdate bool) (*autoscalingv1.Scale, error) {
	want, found, err := unstructured.NestedInt64(u.Object, s.replicas...)
	if err != nil {
		return nil, err
	}
	if !found {
		if !forUpdate {
			return nil, apierrors.NewInternalError(fmt.Errorf("the spec replicas field %q does not exist", s.spec))
		}
		want = notSet
	}
	have, _, err := unstructured.NestedInt64(u.Object, s.have...)
	if err != nil {
		return nil, err
	}
	selector := ""
	if len(s.selector) > 0 {
		if selector, _, err = unstructured.NestedString(u.Object, s.selector...); err != nil {
			return nil, err
		}
	}
	out := &autoscalingv1.Scale{
		TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"},
		ObjectMeta: metav1.ObjectMeta{
			Name: u.GetName(), Namespace: u.GetNamespace(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(),
			CreationTimestamp: u.GetCreationTimestamp(),
		},
		Spec: autoscalingv1.ScaleSpec{Replicas: int32(want)}, Status: autoscalingv1.ScaleStatus{Replicas: int32(have), Selector: selector},
	}
	if forUpdate {
		if out.ManagedFields, err = s.fields(u).ToSubresource(); err != nil {
			return nil, fmt.Errorf("managed fields of the scale of %s: %w", s.version.def.gr, err)
		}
	}
	return out, nil
}

// Apply implements api.CustomScale. Whether the number is a good one, the
// object's own validation says.
func (s *scale) Apply(u *unstructured.Unstructured, wanted *autoscalingv1.Scale) (*unstructured.Unstructured, error) {
	if wanted.Spec.Replicas == notSet {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the spec replicas field %q cannot be empty", s.spec))
	}
	out := u.DeepCopy()
	if err := unstructured.SetNestedField(out.Object, int64(wanted.Spec.Replicas), s.replicas...); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if wanted.ResourceVersion != "" {
		out.SetResourceVersion(wanted.ResourceVersion)
	}
	entries, err := s.fields(u).ToParent(wanted.ManagedFields)
	if err != nil {
		return nil, fmt.Errorf("managed fields of %s: %w", s.version.def.gr, err)
	}
	out.SetManagedFields(entries)
	return out, nil
}
