// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// holding are informers that hold a cluster's objects. They are never started.
func holding(c Cluster) (informers.SharedInformerFactory, error) {
	inf := informers.NewSharedInformerFactory(nil, 0)
	core, apps := inf.Core().V1(), inf.Apps().V1()
	for _, n := range c.Nodes {
		if err := core.Nodes().Informer().GetIndexer().Add(n); err != nil {
			return nil, fmt.Errorf("hold node %s: %w", n.Name, err)
		}
	}
	for _, o := range c.Objects {
		var into cache.SharedIndexInformer
		switch o.(type) {
		case *corev1.Namespace:
			into = core.Namespaces().Informer()
		case *corev1.Service:
			into = core.Services().Informer()
		case *corev1.ReplicationController:
			into = core.ReplicationControllers().Informer()
		case *appsv1.ReplicaSet:
			into = apps.ReplicaSets().Informer()
		case *appsv1.StatefulSet:
			into = apps.StatefulSets().Informer()
		case *policyv1.PodDisruptionBudget:
			into = inf.Policy().V1().PodDisruptionBudgets().Informer()
		default:
			return nil, fmt.Errorf("no plugin looks up a %T", o)
		}
		if err := into.GetIndexer().Add(o); err != nil {
			return nil, fmt.Errorf("hold %T: %w", o, err)
		}
	}
	return inf, nil
}
