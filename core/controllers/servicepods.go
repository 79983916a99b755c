// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	endpointsliceutil "k8s.io/endpointslice/util"
)

// ServicesOfPod are the Services whose endpoints a change of a pod concerns: none where
// nothing changed that an endpoint shows. old is nil for a new pod, current for one that is gone.
func ServicesOfPod(services corelisters.ServiceLister, old, current metav1.Object) ([]Key, error) {
	// The library takes absent objects as nil interfaces of any type.
	var before, after any
	if old != nil {
		before = old
	}
	if current != nil {
		after = current
	}
	projection := endpointsliceutil.GetPodUpdateProjectionKey(before, after)
	if projection == nil {
		return nil, nil
	}
	names, err := endpointsliceutil.GetServicesToUpdate(services, projection)
	if err != nil {
		return nil, err
	}
	var keys []Key
	for name := range names {
		if namespace, name, err := cache.SplitMetaNamespaceKey(name); err == nil {
			keys = append(keys, Key{Namespace: namespace, Name: name})
		}
	}
	return keys, nil
}
