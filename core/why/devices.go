// SPDX-License-Identifier: Apache-2.0

package why

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// podDevices: what keeps a pod from its devices, whatever node it were given.
func (e *explainer) podDevices(p *corev1.Pod) *Answer {
	for i := range p.Spec.ResourceClaims {
		ref := &p.Spec.ResourceClaims[i]
		if template := ref.ResourceClaimTemplateName; template != nil {
			if _, ok := find(e.DeviceTemplates, p.Namespace, *template); !ok {
				return stuck("its resource claim template %s does not exist", *template)
			}
		}
		name, _, err := resourceclaim.Name(p, ref)
		switch {
		case err != nil:
			return stuck("its resource claim %s has not been made from the template yet", ref.Name)
		case name == nil:
			continue
		}
		c, ok := find(e.DeviceClaims, p.Namespace, *name)
		if !ok {
			return stuck("its resource claim %s does not exist", *name)
		}
		if a := e.deviceClaim(c); a != nil {
			return a
		}
	}
	return nil
}

// deviceClaim: what keeps a claim from any device.
func (e *explainer) deviceClaim(c *resourcev1.ResourceClaim) *Answer {
	if c.Status.Allocation != nil {
		return nil
	}
	for i := range c.Spec.Devices.Requests {
		r := &c.Spec.Devices.Requests[i]
		var classes []string
		if r.Exactly != nil {
			classes = append(classes, r.Exactly.DeviceClassName)
		}
		for j := range r.FirstAvailable {
			classes = append(classes, r.FirstAvailable[j].DeviceClassName)
		}
		for _, class := range classes {
			if _, ok := find(e.DeviceClasses, "", class); !ok {
				return stuck("its resource claim %s asks for device class %s, which does not exist", c.Name, class).
					or("see which device classes there are", "kubectl get deviceclasses")
			}
		}
	}
	if len(e.DeviceSlices) == 0 {
		return stuck("its resource claim %s asks for devices, and no node has any: no driver has published a ResourceSlice", c.Name)
	}
	return nil
}
