// SPDX-License-Identifier: Apache-2.0

package nodecache

import (
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// Handler reduces informer events to (old, new), with nil for what is not there.
func Handler(f func(old, now k8sruntime.Object)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f(nil, o.(k8sruntime.Object)) },
		UpdateFunc: func(o, n any) { f(o.(k8sruntime.Object), n.(k8sruntime.Object)) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if last, ok := o.(k8sruntime.Object); ok {
				f(last, nil)
			}
		},
	}
}
