// SPDX-License-Identifier: Apache-2.0

package aggregator

import "k8s.io/apimachinery/pkg/runtime/schema"

type priority struct{ group, version int32 }

// The priorities that upstream registers its groups with. They put the groups
// of the kubectl output in order, and among them those of other servers.
func groupPriorities() map[string]int32 {
	return map[string]int32{
		"":                             18000,
		"apps":                         17800,
		"events.k8s.io":                17750,
		"authentication.k8s.io":        17700,
		"authorization.k8s.io":         17600,
		"autoscaling":                  17500,
		"batch":                        17400,
		"certificates.k8s.io":          17300,
		"networking.k8s.io":            17200,
		"policy":                       17100,
		"rbac.authorization.k8s.io":    17000,
		"storage.k8s.io":               16800,
		"apiextensions.k8s.io":         16700,
		"admissionregistration.k8s.io": 16700,
		"scheduling.k8s.io":            16600,
		"coordination.k8s.io":          16500,
		"node.k8s.io":                  16300,
		"discovery.k8s.io":             16200,
		"resource.k8s.io":              16200,
		"flowcontrol.apiserver.k8s.io": 16100,
		"internal.apiserver.k8s.io":    16000,
		"storagemigration.k8s.io":      15800,
		"lifecycle.k8s.io":             15700,
	}
}

// priorities of a built-in group version.
func priorities(gv schema.GroupVersion) priority {
	p := priority{group: groupPriorities()[gv.Group], version: versionPriority(gv)}
	if p.group == 0 {
		p.group = 15000 // built in, and unknown to the table: behind those that it knows
	}
	return p
}

func versionPriority(gv schema.GroupVersion) int32 {
	switch gv {
	case schema.GroupVersion{Version: "v1"}, schema.GroupVersion{Group: "resource.k8s.io", Version: "v1alpha3"}:
		return 1
	case schema.GroupVersion{Group: "autoscaling", Version: "v2"}:
		return 30
	case schema.GroupVersion{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}, schema.GroupVersion{
		Group:   "resource.k8s.io",
		Version: "v1",
	}:
		return 21
	case schema.GroupVersion{Group: "resource.k8s.io", Version: "v1beta2"}:
		return 15
	case schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1beta1"}:
		return 12
	}
	switch gv.Version {
	case "v1":
		return 15
	case "v1beta1", "v1beta2", "v1beta3", "v2beta1":
		return 9
	}
	return 1
}
