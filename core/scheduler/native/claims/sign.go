// SPDX-License-Identifier: Apache-2.0

package claims

import "github.com/wasmplane/wasmplane/core/scheduler/framework"

// Sign implements framework.Signed.
func (*Binding) Sign(p *framework.PodInfo, _ *framework.Signature) bool { return !hasClaims(p) }

// Sign implements framework.Signed.
func (*Restrictions) Sign(p *framework.PodInfo, _ *framework.Signature) bool { return !hasClaims(p) }

// Sign implements framework.Signed.
func (*Limits) Sign(p *framework.PodInfo, _ *framework.Signature) bool { return !hasClaims(p) }

// hasClaims says whether a pod uses claims. Those are as many cases as there are claims.
func hasClaims(p *framework.PodInfo) bool {
	for i := range p.Pod.Spec.Volumes {
		if name, _ := claimOf(p.Pod, &p.Pod.Spec.Volumes[i]); name != "" {
			return true
		}
	}
	return false
}
