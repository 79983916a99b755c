// SPDX-License-Identifier: Apache-2.0

package worlds

import (
	"path"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// owners are what others may belong to, and what may belong to them: what is left when its
// owner is gone leaks.
var owners = []schema.GroupVersionResource{
	{Version: "v1", Resource: "nodes"},
	{Version: "v1", Resource: "services"},
	{Version: "v1", Resource: "endpoints"},
	{Version: "v1", Resource: "pods"},
	{Version: "v1", Resource: "persistentvolumeclaims"},
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Resource: "replicasets"},
	{Group: "apps", Version: "v1", Resource: "statefulsets"},
	{Group: "apps", Version: "v1", Resource: "daemonsets"},
	{Group: "apps", Version: "v1", Resource: "controllerrevisions"},
	{Group: "batch", Version: "v1", Resource: "jobs"},
	{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
}

// leaked holds what there is against its owners.
func (a *asked) leaked(miss func(string, ...any)) {
	there, owned := map[types.UID]bool{}, map[string][]metav1.OwnerReference{}
	for _, r := range owners {
		list, err := a.w.user.Dynamic.Resource(r).List(a.w.ctx, metav1.ListOptions{})
		if err != nil {
			miss("%s cannot be listed: %v", r.Resource, err)
			return
		}
		for _, o := range list.Items {
			there[o.GetUID()] = true
			owned[path.Join(r.Resource, o.GetNamespace(), o.GetName())] = o.GetOwnerReferences()
		}
	}
	for name, refs := range owned {
		for _, ref := range refs {
			if !there[ref.UID] {
				miss("%s belongs to %s %s (%s), which is gone", name, ref.Kind, ref.Name, ref.UID)
			}
		}
	}
}
