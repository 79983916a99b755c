// SPDX-License-Identifier: Apache-2.0

package why

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/reply"
)

// podDevices: what keeps a pod from its devices, whatever node it were given.
func (e *explainer) podDevices(p *corev1.Pod) *Answer {
	for i := range p.Spec.ResourceClaims {
		ref := &p.Spec.ResourceClaims[i]
		if template := ref.ResourceClaimTemplateName; template != nil {
			if _, ok := facts.Find(e.DeviceTemplates, p.Namespace, *template); !ok {
				return reply.Stuck("its resource claim template %s does not exist", *template)
			}
		}
		name, _, err := resourceclaim.Name(p, ref)
		switch {
		case err != nil:
			return reply.Stuck("its resource claim %s has not been made from the template yet", ref.Name)
		case name == nil:
			continue
		}
		c, ok := facts.Find(e.DeviceClaims, p.Namespace, *name)
		if !ok {
			return reply.Stuck("its resource claim %s does not exist", *name)
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
			if _, ok := facts.Find(e.DeviceClasses, "", class); !ok {
				return reply.Stuck("its resource claim %s asks for device class %s, which does not exist", c.Name, class).
					Or("see which device classes there are", "kubectl get deviceclasses")
			}
		}
	}
	if len(e.DeviceSlices) == 0 {
		return reply.Stuck("its resource claim %s asks for devices, and no node has any: no driver has published a ResourceSlice", c.Name)
	}
	return nil
}

// resourceClaim: why devices are not given to it.
func (e *explainer) resourceClaim(name string) *Answer {
	c, ok := facts.Find(e.DeviceClaims, e.in, name)
	if !ok {
		return nil
	}
	users := e.usersOf(c)
	switch {
	case c.DeletionTimestamp != nil:
		a := reply.Stuck("it is being deleted, and waits for its finalizers %s", strings.Join(c.Finalizers, ", "))
		for _, r := range c.Status.ReservedFor[:min(len(c.Status.ReservedFor), 3)] {
			a.More("%s %s still uses it", r.Resource, r.Name)
			a.Or("end what uses it", "kubectl delete %s %s -n %s", r.Resource, r.Name, c.Namespace)
		}
		return a
	case c.Status.Allocation != nil && len(c.Status.ReservedFor) > 0:
		return reply.Well("it has its devices, and %s %s uses them", c.Status.ReservedFor[0].Resource, c.Status.ReservedFor[0].Name)
	case c.Status.Allocation != nil:
		return reply.Well("it has its devices, and nobody uses them")
	}
	if a := e.deviceClaim(c); a != nil {
		return a
	}
	for _, p := range users {
		if a := e.explainPod(p); !a.Well {
			return a.Of("it gets its devices when a pod that uses it gets a node: pod %s", p.Name)
		}
	}
	return reply.Stuck("it gets its devices when a pod uses it, and none does").
		Or("see which pods name it", "kubectl get pods -n %s -o custom-columns=POD:.metadata.name,CLAIMS:.spec.resourceClaims", c.Namespace)
}

// usersOf are the pods that name a claim.
func (e *explainer) usersOf(c *resourcev1.ResourceClaim) (out []*corev1.Pod) {
	for _, p := range e.Pods {
		for i := range p.Spec.ResourceClaims {
			if name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i]); p.Namespace == c.Namespace && err == nil && name != nil &&
				*name == c.Name {
				out = append(out, p)
			}
		}
	}
	return out
}
