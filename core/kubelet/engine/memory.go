// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// MemoryUsed is what those containers of a pod use together that are meant.
func MemoryUsed(list []*cri.PodSandboxStats, uid types.UID, meant func(id string) bool) (used uint64) {
	for _, p := range list {
		if types.UID(p.GetAttributes().GetMetadata().GetUid()) != uid {
			continue
		}
		for _, c := range p.GetLinux().GetContainers() {
			if meant(c.GetAttributes().GetId()) {
				used += c.GetMemory().GetWorkingSetBytes().GetValue()
			}
		}
	}
	return used
}
