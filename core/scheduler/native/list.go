// SPDX-License-Identifier: Apache-2.0

package native

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/core/scheduler"
)

// Default lists the native plugins in the order in which they are asked: those
// that are cheap and refuse often come first. The weights are upstream's. spread are
// the constraints of pods that have none, without labelSelectors; nil: SystemSpread.
func Default(inf informers.SharedInformerFactory, spread []corev1.TopologySpreadConstraint) []scheduler.Weighted {
	core, storage, apps := inf.Core().V1(), inf.Storage().V1(), inf.Apps().V1()
	return []scheduler.Weighted{
		{Plugin: Unschedulable{}},
		{Plugin: NodeName{}},
		{Plugin: Taints{}, Weight: 3},
		{Plugin: Affinity{}, Weight: 2},
		{Plugin: Ports{}},
		{Plugin: Fit{}, Weight: 1},
		{Plugin: Volumes{
			Claims:  core.PersistentVolumeClaims().Lister(),
			Volumes: core.PersistentVolumes().Lister(),
			Classes: storage.StorageClasses().Lister(),
		}},
		{Plugin: Spread{Defaults: &SpreadDefaults{
			Constraints: spread,
			Services:    core.Services().Lister(), Controllers: core.ReplicationControllers().Lister(),
			ReplicaSets: apps.ReplicaSets().Lister(), StatefulSets: apps.StatefulSets().Lister(),
		}}, Weight: 2},
		{Plugin: PodAffinity{Namespaces: core.Namespaces().Lister()}, Weight: 2},
		{Plugin: Balance{}, Weight: 1},
		{Plugin: ImageLocality{}, Weight: 1},
		{Plugin: Preemption{Budgets: inf.Policy().V1().PodDisruptionBudgets().Lister()}},
	}
}
