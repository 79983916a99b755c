// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func services() *Measure {
	gr := schema.GroupResource{Resource: "services"}
	return &Measure{
		Resource: gr,
		names: []corev1.ResourceName{
			CountName(gr), corev1.ResourceServices, corev1.ResourceServicesNodePorts,
			corev1.ResourceServicesLoadBalancers,
		},
		usage: func(o runtime.Object, _ time.Time) (corev1.ResourceList, error) {
			s, err := as[*corev1.Service](o)
			if err != nil {
				return nil, err
			}
			return corev1.ResourceList{
				CountName(gr): one(), corev1.ResourceServices: one(),
				corev1.ResourceServicesNodePorts:     number(nodePorts(s)),
				corev1.ResourceServicesLoadBalancers: number(loadBalancers(s)),
			}, nil
		},
		changes: func(subresource string, _, _ runtime.Object) bool { return subresource == "" },
		releases: func(o, old runtime.Object, _ time.Time) bool {
			s, err1 := as[*corev1.Service](o)
			was, err2 := as[*corev1.Service](old)
			return errors.Join(err1, err2) == nil && (nodePorts(s) != nodePorts(was) || loadBalancers(s) != loadBalancers(was))
		},
	}
}

func number(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }

// nodePorts that the Service is going to have: admission judges before they are given out.
func nodePorts(s *corev1.Service) int {
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		return len(s.Spec.Ports)
	case corev1.ServiceTypeLoadBalancer:
		if a := s.Spec.AllocateLoadBalancerNodePorts; a == nil || *a {
			return len(s.Spec.Ports)
		}
		n := 0
		for _, p := range s.Spec.Ports {
			if p.NodePort != 0 {
				n++
			}
		}
		return n
	default:
		return 0
	}
}

func loadBalancers(s *corev1.Service) int {
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		return 1
	}
	return 0
}

// classSuffix stands between a storage class and what is limited of it:
// gold.storageclass.storage.k8s.io/requests.storage.
const classSuffix = ".storageclass.storage.k8s.io/"

func claims() *Measure {
	gr := schema.GroupResource{Resource: "persistentvolumeclaims"}
	return &Measure{
		Resource: gr,
		names:    []corev1.ResourceName{CountName(gr), corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage},
		more: func(n corev1.ResourceName) bool {
			return strings.HasSuffix(string(n), classSuffix+string(corev1.ResourcePersistentVolumeClaims)) ||
				strings.HasSuffix(string(n), classSuffix+string(corev1.ResourceRequestsStorage))
		},
		usage: claimUsage,
		scope: claimScope,
		changes: func(subresource string, o, old runtime.Object) bool {
			return subresource == "" || subresource == "status" && claimChanged(o, old)
		},
		releases: func(o, old runtime.Object, _ time.Time) bool { return claimChanged(o, old) },
	}
}

func claimUsage(o runtime.Object, _ time.Time) (corev1.ResourceList, error) {
	c, err := as[*corev1.PersistentVolumeClaim](o)
	if err != nil {
		return nil, err
	}
	out := corev1.ResourceList{
		CountName(schema.GroupResource{Resource: "persistentvolumeclaims"}): one(),
		corev1.ResourcePersistentVolumeClaims:                               one(),
	}
	class := storageClass(c)
	if class != "" {
		out[corev1.ResourceName(class+classSuffix)+corev1.ResourcePersistentVolumeClaims] = one()
	}
	storage, ok := c.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return out, nil
	}
	// A volume that is growing takes what it was given, though less is asked for by now.
	if given, ok := c.Status.AllocatedResources[corev1.ResourceStorage]; ok && given.Cmp(storage) > 0 {
		storage = given
	}
	storage = storage.DeepCopy()
	storage.RoundUp(0)
	out[corev1.ResourceRequestsStorage] = storage
	if class != "" {
		out[corev1.ResourceName(class+classSuffix)+corev1.ResourceRequestsStorage] = storage
	}
	return out, nil
}

func storageClass(c *corev1.PersistentVolumeClaim) string {
	if class, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	if c.Spec.StorageClassName != nil {
		return *c.Spec.StorageClassName
	}
	return ""
}

func claimChanged(o, old runtime.Object) bool {
	c, err1 := as[*corev1.PersistentVolumeClaim](o)
	was, err2 := as[*corev1.PersistentVolumeClaim](old)
	if errors.Join(err1, err2) != nil {
		return false
	}
	return c.Status.AllocatedResources.Storage().Cmp(*was.Status.AllocatedResources.Storage()) != 0 ||
		c.Spec.Resources.Requests.Storage().Cmp(*was.Spec.Resources.Requests.Storage()) != 0 ||
		!slices.Equal(attributesClasses(c), attributesClasses(was))
}

func claimScope(s corev1.ScopedResourceSelectorRequirement, o runtime.Object) (bool, error) {
	c, err := as[*corev1.PersistentVolumeClaim](o)
	if err != nil || s.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass {
		return false, err
	}
	selector, err := scopeSelector(s)
	if err != nil {
		return false, err
	}
	classes := attributesClasses(c)
	if len(classes) == 0 {
		return selector.Matches(labels.Set{}), nil
	}
	return slices.ContainsFunc(classes, func(class string) bool {
		return selector.Matches(labels.Set{string(corev1.ResourceQuotaScopeVolumeAttributesClass): class})
	}), nil
}

// attributesClasses that the claim wants, has, or is changing to.
func attributesClasses(c *corev1.PersistentVolumeClaim) []string {
	var out []string
	if n := c.Spec.VolumeAttributesClassName; n != nil && *n != "" {
		out = append(out, *n)
	}
	if n := c.Status.CurrentVolumeAttributesClassName; n != nil && *n != "" {
		out = append(out, *n)
	}
	if m := c.Status.ModifyVolumeStatus; m != nil && m.TargetVolumeAttributesClassName != "" {
		out = append(out, m.TargetVolumeAttributesClassName)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
